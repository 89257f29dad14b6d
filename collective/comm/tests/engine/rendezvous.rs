//! Rendezvous of ranks, and its errors.

use crate::common::{free_port, options, ranks};
use burn_ddp_comm::{Error, InitMethod, Options, ProcessGroup, ReduceOp, Result, Secret, Transport};
use std::{
    io::Write,
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

fn init(port: u16, rank: usize, size: usize, options: Options) -> Result<ProcessGroup> {
    ProcessGroup::init(InitMethod::Tcp(format!("127.0.0.1:{port}")), options.rank(rank).world_size(size))
}

#[test]
fn missing_ranks_are_named_at_the_rendezvous() {
    let port = free_port();
    let options = options().rendezvous_timeout(Duration::from_secs(1));
    let errors = ranks(2, |i| init(port, 2 * i, 4, options.clone()).unwrap_err());
    for error in errors {
        assert!(matches!(error, Error::Rendezvous { .. }), "{error:?}");
        assert!(error.to_string().contains("ranks 1, 3 (2 of 4 came)"), "{error}");
    }
}

#[test]
fn without_rank_0_the_error_names_it() {
    let error =
        init(free_port(), 1, 2, options().rendezvous_timeout(Duration::from_millis(300))).unwrap_err();
    assert!(error.to_string().contains("rank 0") && error.to_string().contains("MASTER_PORT"), "{error}");
}

#[test]
fn different_world_sizes_are_an_error_on_all_ranks() {
    let port = free_port();
    let errors = ranks(3, |rank| init(port, rank, if rank == 1 { 4 } else { 3 }, options()).unwrap_err());
    for error in errors {
        let text = error.to_string();
        assert!(
            text.contains("rank 1") && text.contains("world size 4") && text.contains("rank 0 with 3"),
            "{text}"
        );
    }
}

#[test]
fn different_transports_are_an_error_on_all_ranks() {
    let port = free_port();
    let transports = [Transport::Tcp, Transport::Tcp, Transport::Shm];
    let errors = ranks(3, |rank| init(port, rank, 3, options().transport(transports[rank])).unwrap_err());
    for error in errors {
        assert!(
            error.to_string().contains("rank 2 was started with transport shm, but rank 0 with tcp"),
            "{error}"
        );
    }
}

#[test]
fn a_duplicate_rank_is_an_error_on_all_ranks() {
    let port = free_port();
    let errors = ranks(3, |i| init(port, [0, 1, 1][i], 3, options()).unwrap_err());
    for error in errors {
        assert!(error.to_string().contains("two processes have rank 1"), "{error}");
    }
}

#[test]
fn a_rank_of_another_job_is_rejected_by_name() {
    let port = free_port();
    let errors = ranks(3, |i| match i {
        2 => Some(init(port, 1, 2, options().group_name("red")).unwrap_err()),
        rank => {
            // The rank of the other job arrives first.
            thread::sleep(Duration::from_millis(1000 * rank as u64));
            init(port, rank, 2, options().group_name("blue")).unwrap().barrier().unwrap();
            None
        }
    });
    let error = errors[2].as_ref().unwrap().to_string();
    for part in ["rank 1", "job \"red\"", "job \"blue\"", &format!("127.0.0.1:{port}")] {
        assert!(error.contains(part), "should name `{part}`: {error}");
    }
}

#[test]
fn a_taken_address_names_the_job_that_uses_it() {
    let port = free_port();
    let first = thread::spawn(move || init(port, 0, 2, options().group_name("blue")).unwrap());
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        thread::sleep(Duration::from_millis(10));
    }
    let error = init(port, 0, 2, options().group_name("red")).unwrap_err().to_string();
    assert!(error.contains("job \"red\"") && error.contains("job \"blue\""), "{error}");
    let error = init(port, 0, 2, options().group_name("blue")).unwrap_err().to_string();
    assert!(error.contains("rank 0 cannot listen"), "{error}");
    let second = init(port, 1, 2, options().group_name("blue")).unwrap();
    drop((first.join().unwrap(), second));
}

#[test]
fn a_rank_with_another_secret_is_rejected() {
    let port = free_port();
    let options = options().rendezvous_timeout(Duration::from_secs(2));
    let errors = ranks(2, |rank| match rank {
        0 => init(port, 0, 2, options.clone()).unwrap_err(),
        _ => init(port, 1, 2, options.clone().secret(Secret::new("another").unwrap())).unwrap_err(),
    });
    assert!(errors[0].to_string().contains("did not authenticate with the job's secret"), "{}", errors[0]);
    assert!(matches!(errors[1], Error::Unauthenticated { .. }), "{:?}", errors[1]);
}

/// Local addresses on which this process listens: hexadecimal in the byte order of the machine, then the port.
#[cfg(target_os = "linux")]
fn listening() -> Vec<String> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let own: Vec<_> = links.filter_map(|link| std::fs::read_link(link.path()).ok()).collect();
    let tables = ["tcp", "tcp6"].map(|name| std::fs::read_to_string(format!("/proc/self/net/{name}")));
    let lines = tables.iter().flatten().flat_map(|table| table.lines().skip(1));
    let fields = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    // The fourth field is the state, the tenth the inode.
    let found =
        fields.filter(|line| line[3] == "0A" && own.contains(&format!("socket:[{}]", line[9]).into()));
    found.map(|line| line[1].to_owned()).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn a_job_on_loopback_listens_on_no_other_address() {
    let port = free_port();
    ranks(2, |rank| {
        let group = init(port, rank, 2, options().transport(Transport::Tcp)).unwrap();
        group.all_reduce(&mut [1f32], ReduceOp::Sum).unwrap();
        // 127.0.0.1, also of the other tests of this program.
        let (listening, loopback) = (listening(), format!("{:08X}:", u32::from_ne_bytes([127, 0, 0, 1])));
        assert!(listening.len() >= 3, "rank 0, and data of both ranks: {listening:?}");
        assert!(listening.iter().all(|address| address.starts_with(&loopback)), "{listening:?}");
        group.barrier().unwrap();
    });
}

/// Connects to `port` repeatedly until `until`, and sends random bytes or nothing.
fn pester(port: u16, until: Instant) {
    let mut silent = Vec::new();
    while Instant::now() < until {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        }
        if silent.len() < 50 {
            silent.extend(TcpStream::connect(("127.0.0.1", port)));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn unauthenticated_peers_neither_stop_nor_delay_the_job() {
    let port = free_port();
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| pester(port, begun + Duration::from_secs(3)));
        ranks(3, |rank| {
            thread::sleep(Duration::from_millis(300 * rank as u64));
            let group = init(port, rank, 3, options()).unwrap();
            for _ in 0..50 {
                let mut sum = [1f32];
                group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, [3.0]);
            }
        });
    });
}

#[test]
fn invalid_arguments_are_rejected_before_anything_is_opened() {
    let refused = |method: &str, options: Options, part: &str| {
        let error = ProcessGroup::init(method.parse().unwrap(), options).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    let two = || Options::default().rank(0).world_size(2);
    refused("tcp://127.0.0.1:1", two().rank(2), "rank 2 does not exist in a world of 2");
    refused("tcp://127.0.0.1:1", two().world_size(0), "world size is 0");
    refused("tcp://192.0.2.1:1", two(), "BURN_DDP_SECRET");
    refused("tcp://host.invalid:1", two(), "host.invalid");
    assert!("x".parse::<Transport>().unwrap_err().to_string().contains("tcp, nccl or mpi"));
    let solo = ProcessGroup::solo();
    assert!(solo.broadcast(&mut [0u8], 1).unwrap_err().to_string().contains("root 1"));
}

/// The wait for rank 0, and that of rank 0 for the others.
#[test]
fn ranks_that_have_joined_are_told_that_rank_0_gave_up() {
    let (begun, port) = (Instant::now(), free_port());
    let joined = thread::spawn(move || init(port, 1, 3, options()).unwrap_err());
    let cancelled = options().cancel_if(move || begun.elapsed() > Duration::from_millis(300));
    for error in [init(port, 0, 3, cancelled).unwrap_err(), joined.join().unwrap()] {
        assert!(matches!(error, Error::Rendezvous { .. }), "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn a_wait_can_be_cancelled() {
    let (begun, port) = (Instant::now(), free_port());
    let cancelled = options().cancel_if(move || begun.elapsed() > Duration::from_millis(300));
    for rank in 0..2 {
        let error = init(port, rank, 2, cancelled.clone()).unwrap_err();
        assert!(matches!(error, Error::Rendezvous { .. }), "{error}");
    }
    // A rank that waits for the file of rank 0.
    let folder = tempfile::tempdir().unwrap();
    let method = InitMethod::File(folder.path().join("job"));
    let error = ProcessGroup::init(method, cancelled.rank(1).world_size(2)).unwrap_err();
    assert!(matches!(error, Error::Rendezvous { .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
