//! Ranks as processes over shared memory, and a stopped one.
//!
//! The test binary starts itself for every rank; a rank prints how it ended.

use super::call;
use burn_ddp_comm::{
    Communicator, DType, Error, ReduceOp, Result,
    communicator::Call,
    transport::shm::{ShmCommunicator, ShmSegment},
};
use std::{
    env, fs,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

/// Environment variable that makes a process a rank: rank, world, time-out in ms, rounds, name of the memory.
const RANK: &str = "COLLECTIVE_TEST_RANK";
/// Element counts of the rounds in turn: small areas, one piece, several pieces.
const COUNTS: [usize; 3] = [1_000, 100_000, 700_000];

/// Entry point of a rank process; passes at once in the test run itself.
#[test]
fn rank() {
    let Ok(role) = env::var(RANK) else { return };
    let [rank, world, timeout, rounds, name] = role.splitn(5, ' ').collect::<Vec<_>>()[..] else {
        panic!("{role}")
    };
    let number = |text: &str| text.parse::<usize>().unwrap();
    let timeout = Duration::from_millis(number(timeout) as u64);
    let result = work(number(rank), number(world), timeout, number(rounds), name);
    println!("ENDED {}", serde_json::to_string(&result.err()).unwrap());
}

fn work(rank: usize, world: usize, timeout: Duration, rounds: usize, name: &str) -> Result<()> {
    let communicator =
        ShmCommunicator::connect(ShmSegment::open(name, world)?, rank, Duration::from_secs(60))?;
    println!("JOINED");
    for round in 0..rounds {
        let count = COUNTS[round % COUNTS.len()];
        let mut buffer: Vec<f32> = (0..count).map(|i| (i % 1000 + rank * (round % 7)) as f32).collect();
        let call = Call {
            reduce: Some(ReduceOp::Sum),
            dtype: DType::F32,
            timeout,
            ..call(round as u64 + 1, "all_reduce", count)
        };
        communicator.all_reduce(&call, bytemuck::cast_slice_mut(&mut buffer))?;
        let ranks = (0..world).sum::<usize>() * (round % 7);
        assert!(buffer.iter().enumerate().all(|(i, v)| *v == (i % 1000 * world + ranks) as f32));
    }
    Ok(())
}

struct Rank {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Rank {
    fn start(rank: usize, world: usize, timeout: Duration, rounds: usize, name: &str) -> Self {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", "local::processes::rank", "--nocapture", "--test-threads=1"])
            .env(RANK, format!("{rank} {world} {} {rounds} {name}", timeout.as_millis()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Rank { process, output }
    }

    /// Reads up to a line that begins with `word`, and returns the rest of that line.
    fn expect(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            // The test harness prints "test processes::rank ... " before it.
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_string();
            }
            line.clear();
        }
        panic!("a rank ended without {word}");
    }

    fn ended(&mut self) -> Option<Error> {
        serde_json::from_str(&self.expect("ENDED")).unwrap()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the process is a child that has not been waited for, so that its id is still valid.
        assert_eq!(unsafe { libc::kill(i32::try_from(self.process.id()).unwrap(), signal) }, 0);
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts `world` processes, and returns when all have joined.
///
/// This process creates the memory, takes no rank and keeps no mapping.
fn start(world: usize, timeout: Duration, rounds: usize) -> Vec<Rank> {
    let segment = ShmSegment::create(world).unwrap();
    let mut ranks: Vec<_> =
        (0..world).map(|rank| Rank::start(rank, world, timeout, rounds, segment.name())).collect();
    ranks.iter_mut().for_each(|rank| {
        rank.expect("JOINED");
    });
    ranks
}

/// Lines of `/proc/<pid>/<file>` that are about the shared memory.
fn mappings(pid: u32) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines()
        .filter(|line| line.contains("burn-ddp (") || line.contains("/dev/shm"))
        .map(String::from)
        .collect()
}

#[test]
fn processes_reduce() {
    for mut rank in start(3, Duration::from_secs(60), 30) {
        assert_eq!(rank.ended(), None);
        assert!(rank.process.wait().unwrap().success());
    }
}

/// Nothing can be left behind: there is no file, and no descriptor that a child could inherit.
#[test]
fn the_memory_has_no_name_and_no_descriptor() {
    let ranks = start(2, Duration::from_secs(60), usize::MAX);
    for rank in &ranks {
        let pid = rank.process.id();
        let mapped = mappings(pid);
        assert!(
            !mapped.is_empty() && mapped.iter().all(|line| line.ends_with("/memfd:burn-ddp (deleted)")),
            "{mapped:?}"
        );
        let held = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let held: Vec<_> = held.filter_map(|fd| fs::read_link(fd.path()).ok()).collect();
        assert!(held.iter().all(|path| !path.to_string_lossy().contains("memfd")), "{held:?}");
    }
}

#[test]
fn a_stopped_rank_is_named_at_the_deadline() {
    let mut ranks = start(3, Duration::from_secs(1), usize::MAX);
    thread::sleep(Duration::from_millis(20));
    ranks[1].signal(libc::SIGSTOP);
    for rank in [0, 2] {
        let error = ranks[rank].ended();
        let Some(Error::Timeout { absent, .. }) = &error else { panic!("rank {rank}: {error:?}") };
        assert!(absent.contains("rank 1") && !absent.contains(&format!("rank {rank}")), "{absent}");
    }
    // It continues and fails, because the others have timed out.
    ranks[1].signal(libc::SIGCONT);
    let error = ranks[1].ended();
    assert!(matches!(error, Some(Error::PeerLost { .. })), "{error:?}");
}

#[test]
fn a_rank_that_never_joins_is_named() {
    let segment = ShmSegment::create(3).unwrap();
    let error = ShmCommunicator::connect(segment, 1, Duration::from_millis(100)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("rank 0 has not joined; rank 2 has not joined"), "{text}");
}

#[test]
fn two_processes_cannot_have_the_same_rank() {
    let segment = ShmSegment::create(2).unwrap();
    let twin = ShmSegment::open(segment.name(), 2).unwrap();
    let brief = Duration::from_millis(100);
    thread::scope(|scope| {
        let both =
            [segment, twin].map(|segment| scope.spawn(move || ShmCommunicator::connect(segment, 1, brief)));
        let errors = both.map(|rank| rank.join().unwrap().unwrap_err().to_string());
        assert!(
            errors.iter().any(|error| error.contains("two processes of this machine have rank 1")),
            "{errors:?}"
        );
    });
}
