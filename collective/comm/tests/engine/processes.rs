//! Ranks as processes that meet through `env://`: killed, stopped, and with invalid environments.

use crate::{common::concurrently, process::Rank};
use burn_ddp_comm::Error;
use rand::RngExt;
use rustix::net::{AddressFamily, SocketType};
use std::{
    env, fs,
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// Environment variable with the number of repetitions of the test that kills ranks.
const KILLS: &str = "COLLECTIVE_TEST_KILLS";

/// The ranks of a world.
pub struct World {
    pub ranks: Vec<Rank>,
    /// Bound, but not listening: rank 0 can bind the port, and the system does not assign it to other programs.
    _port: OwnedFd,
}

/// Starts a world, with additional environment variables.
///
/// With transport `machines`, two ranks each count as one machine.
pub fn launch(size: usize, role: &str, others: &[(&str, &str)]) -> World {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let port = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap().port();
    let ranks = (0..size)
        .map(|rank| {
            let mut variables = vec![
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", size.to_string()),
                ("MASTER_PORT", port.to_string()),
            ];
            variables.extend(others.iter().map(|(name, value)| (*name, value.to_string())));
            let machines = role.strip_prefix("machines");
            if machines.is_some() {
                variables.push(("BURN_DDP_HOST_ID", format!("machine {}", rank / 2)));
            }
            let role = machines.map_or(role.to_string(), |rest| format!("auto{rest}"));
            Rank::start(&role, &variables)
        })
        .collect();
    World { ranks, _port: socket }
}

#[test]
fn processes_reduce_and_exit() {
    for (transport, size) in [("tcp", 4), ("shm", 4), ("auto", 3), ("tcp", 12), ("chain", 9), ("machines", 5)]
    {
        for rank in &mut launch(size, &format!("{transport} 60000 40"), &[]).ranks {
            assert_eq!(rank.ended(), None);
            assert!(rank.process.wait().unwrap().success());
        }
    }
}

#[test]
fn a_killed_rank_fails_all_others_with_its_name() {
    let times = env::var(KILLS).map_or(4, |times| times.parse().unwrap());
    for (transport, time) in ["tcp", "chain", "shm", "machines"]
        .into_iter()
        .flat_map(|name| (0..times).map(move |time| (name, time)))
    {
        let World { mut ranks, _port } = launch(4, &format!("{transport} 60000 1000000"), &[]);
        for rank in &mut ranks {
            rank.expect("JOINED").unwrap();
        }
        let victim = time % 4;
        thread::sleep(Duration::from_millis(rand::rng().random_range(0..200)));
        ranks[victim].signal(libc::SIGKILL);
        let killed = Instant::now();
        for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
            let error = process.ended().expect("an error");
            assert!(
                matches!(error.cause(), Error::PeerLost { rank, .. } if *rank == victim),
                "{transport}: rank {victim} was killed, rank {rank} reports {error}"
            );
        }
        assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    }
}

/// Nothing can be left behind: there is no file, and no descriptor that a child could inherit.
#[test]
fn shared_memory_has_no_name_and_no_descriptor() {
    let World { mut ranks, _port } = launch(2, "shm 60000 1000000", &[]);
    for rank in &mut ranks {
        rank.expect("JOINED").unwrap();
        let process = PathBuf::from(format!("/proc/{}", rank.process.id()));
        let maps = fs::read_to_string(process.join("maps")).unwrap();
        let mapped: Vec<_> = maps.lines().filter(|line| line.contains("burn-ddp (")).collect();
        assert!(
            !mapped.is_empty() && mapped.iter().all(|line| line.ends_with("/memfd:burn-ddp (deleted)")),
            "{mapped:?}"
        );
        let held = fs::read_dir(process.join("fd")).unwrap().flatten();
        let held: Vec<_> = held.filter_map(|fd| fs::read_link(fd.path()).ok()).collect();
        assert!(held.iter().all(|path| !path.to_string_lossy().contains("memfd")), "{held:?}");
        assert!(!maps.contains("/dev/shm"), "{maps}");
    }
}

#[test]
fn a_stopped_rank_is_named_at_the_deadline() {
    let stop = |victim: usize, transport: &str| {
        let World { mut ranks, _port } = launch(3, &format!("{transport} 3000 1000000"), &[]);
        for rank in &mut ranks {
            rank.expect("JOINED").unwrap();
        }
        ranks[victim].signal(libc::SIGSTOP);
        for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
            let error = process.ended().expect("an error");
            let said = format!("rank {victim} does not answer");
            assert!(
                matches!(error.cause(), Error::Timeout { .. }) && error.to_string().contains(&said),
                "{transport}: rank {victim} was stopped, rank {rank} reports {error}"
            );
        }
        // After it continues, it fails because the job has ended.
        ranks[victim].signal(libc::SIGCONT);
        assert!(ranks[victim].ended().is_some());
    };
    for victim in [1, 0] {
        concurrently(["tcp", "chain", "shm", "machines"], |transport| stop(victim, transport));
    }
}

#[test]
fn different_numbers_of_steps_are_a_mismatch_on_all_ranks() {
    for transport in ["tcp", "chain", "shm", "machines"] {
        let World { mut ranks, _port } = launch(3, &format!("{transport} 120000 20 uneven"), &[]);
        ranks[2].expect("STEPPED").unwrap();
        let begun = Instant::now();
        for rank in &mut ranks {
            let error = rank.ended().expect("an error");
            let text = error.to_string();
            assert!(matches!(error.cause(), Error::Mismatch { .. }), "{transport}: {error:?}");
            for word in ["all_reduce #11", "rank 2", "all_gather #", "group of gradients", "ShardedLoader"] {
                assert!(text.contains(word), "{transport}: should name `{word}`: {text}");
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{transport}: {:?}", begun.elapsed());
    }
}

#[test]
fn under_torchrun_the_port_after_its_own_is_used() {
    // Two consecutive ports, of which the first is taken, as by torchrun's agent.
    let (agent, port) = loop {
        let agent = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = agent.local_addr().unwrap().port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            break (agent, port);
        }
    };
    let mut ranks: Vec<_> = (0..2)
        .map(|rank| {
            Rank::start(
                "tcp 60000 4",
                &[
                    ("RANK", rank.to_string()),
                    ("WORLD_SIZE", "2".into()),
                    ("MASTER_ADDR", "localhost".into()),
                    ("MASTER_PORT", port.to_string()),
                    ("TORCHELASTIC_USE_AGENT_STORE", "True".into()),
                ],
            )
        })
        .collect();
    for rank in &mut ranks {
        assert_eq!(rank.ended(), None);
    }
    drop(agent);
}

#[test]
fn invalid_variables_are_named() {
    let good = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "1"), ("MASTER_ADDR", "127.0.0.1")];
    let cases = [
        ("RANK", None, "RANK, which is not set"),
        ("WORLD_SIZE", None, "WORLD_SIZE, which is not set"),
        ("MASTER_PORT", None, "MASTER_PORT, which is not set"),
        ("RANK", Some("one"), "RANK is \"one\""),
        ("WORLD_SIZE", Some("-2"), "WORLD_SIZE is \"-2\""),
        ("MASTER_PORT", Some("70000"), "MASTER_PORT is \"70000\""),
        ("RANK", Some("2"), "rank 2 does not exist"),
        ("MASTER_ADDR", Some("192.0.2.7"), "set BURN_DDP_SECRET"),
        ("BURN_DDP_SECRET", Some(""), "BURN_DDP_SECRET"),
    ];
    for (name, value, part) in cases {
        let mut variables: Vec<_> = good.iter().map(|(name, value)| (*name, value.to_string())).collect();
        variables.retain(|(other, _)| *other != name);
        variables.extend(value.map(|value| (name, value.to_string())));
        let error = Rank::start("tcp 1000 1", &variables).ended().expect("an error").to_string();
        assert!(error.contains(part), "{name}={value:?}: {error}");
    }
}

#[test]
fn a_taken_port_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let variables = [("RANK", "0".into()), ("WORLD_SIZE", "2".into()), ("MASTER_PORT", port.clone())];
    let error = Rank::start("tcp 1000 1", &variables).ended().expect("an error").to_string();
    assert!(error.contains(&format!("127.0.0.1:{port}")) && error.contains("another MASTER_PORT"), "{error}");
}
