//! Ranks as processes that meet through `env://`.
//!
//! The test binary starts itself for every rank, with the test named `rank`, which prints how the rank ended.

use burn_ddp_comm::{
    Error, InitMethod, Options, ProcessGroup, ReduceOp, Result, Transport, transport::tcp::Algorithm,
};
use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

/// Environment variable that makes a process a rank: transport, time-out in ms, rounds.
///
/// Transport `chain` is TCP with that algorithm, and `nccl` uses the stand-in. With a fourth word, `uneven`, the last rank
/// makes half as many rounds.
const ROLE: &str = "COLLECTIVE_TEST_ROLE";
/// Maximum lifetime of a rank. A rank that hangs is ended after it, and its test fails.
const LONGEST: Duration = Duration::from_secs(600);
const COUNTS: [usize; 4] = [0, 100, 10_000, 500_000];

/// Entry point of a rank process; passes at once in the test run itself.
#[test]
fn rank() {
    let Ok(role) = env::var(ROLE) else { return };
    let mut words = role.split(' ');
    let mut word = || words.next().unwrap_or_else(|| panic!("{role}"));
    let (transport, timeout, rounds) = (word(), word(), word());
    let uneven = words.next() == Some("uneven");
    thread::spawn(|| {
        thread::sleep(LONGEST);
        eprintln!("a rank hangs");
        std::process::abort();
    });
    let timeout = Duration::from_millis(timeout.parse().unwrap());
    let (work, rounds) = (if uneven { uneven_steps } else { work }, rounds.parse().unwrap());
    let result = work(transport, timeout, rounds);
    println!("ENDED {}", serde_json::to_string(&result.err()).unwrap());
}

fn join(transport: &str, timeout: Duration) -> Result<ProcessGroup> {
    let options = Options::default().timeout(timeout).rendezvous_timeout(Duration::from_secs(60));
    let options = match transport {
        "chain" => options.transport(Transport::Tcp).tcp_algorithm(Algorithm::Chain),
        other => options.transport(other.parse()?),
    };
    let group = ProcessGroup::init(InitMethod::Env, options)?;
    println!("JOINED {}", group.transport());
    Ok(group)
}

fn work(transport: &str, timeout: Duration, rounds: usize) -> Result<()> {
    let group = join(transport, timeout)?;
    if transport == "nccl" {
        return crate::nccl::killed::work(&group, rounds);
    }
    for round in 0..rounds {
        let count = COUNTS[round % COUNTS.len()];
        let mut buffer: Vec<f32> =
            (0..count).map(|i| (i % 1000 + group.rank() * (round % 7)) as f32).collect();
        group.all_reduce(&mut buffer, ReduceOp::Sum)?;
        let size = group.world_size();
        let ranks = (0..size).sum::<usize>() * (round % 7);
        assert!(buffer.iter().enumerate().all(|(i, v)| *v == (i % 1000 * size + ranks) as f32));
    }
    group.destroy();
    Ok(())
}

/// Training steps with their own group, then the calls at the end of an epoch; half as many steps on the last rank.
fn uneven_steps(transport: &str, timeout: Duration, rounds: usize) -> Result<()> {
    let group = join(transport, timeout)?;
    let gradients = group.duplicate("gradients")?;
    let last = group.rank() + 1 == group.world_size();
    for _ in 0..if last { rounds / 2 } else { rounds } {
        gradients.all_reduce_async(vec![1f32; 1000], ReduceOp::Mean)?.wait()?;
    }
    println!("STEPPED");
    group.all_gather(&[group.rank() as i64])?;
    Ok(())
}

/// A rank process, killed when dropped.
pub struct Rank {
    pub process: Child,
    output: BufReader<ChildStdout>,
}

impl Rank {
    pub fn start(role: &str, variables: &[(&str, String)]) -> Self {
        Self::start_by(Command::new(env::current_exe().unwrap()), role, variables)
    }

    /// Starts the rank by a command to which this program is appended.
    pub fn start_by(mut command: Command, role: &str, variables: &[(&str, String)]) -> Self {
        command.args(["--exact", "process::rank", "--nocapture", "--test-threads=1"]).env(ROLE, role);
        for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "BURN_DDP_SECRET"] {
            command.env_remove(name);
        }
        for (name, value) in variables {
            command.env(name, value);
        }
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Rank { process, output }
    }

    /// Reads up to a line that contains `word`, and returns the rest of that line.
    pub fn expect(&mut self, word: &str) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.split_once(word) {
                return Some(rest.trim().to_string());
            }
            line.clear();
        }
        None
    }

    pub fn ended(&mut self) -> Option<Error> {
        let text = self.expect("ENDED ").expect("the rank to say how it ended");
        serde_json::from_str(&text).unwrap()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the process is a child of this test that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.process.id() as i32, signal) }, 0);
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
