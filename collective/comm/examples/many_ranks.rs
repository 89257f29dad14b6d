//! Benchmark of the rendezvous, failure notice and exit of many ranks without tensors.
//!
//! ```text
//! cargo run -p burn-ddp-comm --example many_ranks -- 1000 [death | barrier | exit | missing]
//! ```
//!
//! Arguments: number of ranks, and how the job ends. Rank 0 and the last rank have a process each, the other ranks
//! are threads of processes of up to 256. All connect over TCP on loopback with the job's secret. Prints one JSON
//! object. Connections and bytes are those of rank 0's server, according to `ss`, before the job ends.
//!
//! - `death`: the last rank is killed. `end_s` is the time until all others have the error.
//! - `barrier`: the same, after the others have waited in a barrier for 8 s.
//! - `exit`: all ranks leave at once. `end_s` is the time until the last one has left.
//! - `missing`: ranks 3, 17 to 40 and every second rank of the upper half do not come. `end_s` is the time from the
//!   time limit of the rendezvous, 10 s, until all others have the error.

use burn_ddp_comm::{InitMethod, Options, ProcessGroup, Secret, Transport};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    env,
    error::Error,
    fs,
    io::{self, BufRead, BufReader, Write},
    net::TcpListener,
    process::{Child, ChildStdout, Command, Stdio},
    sync::Barrier,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Environment variable with a child's first rank, number of ranks, and port.
const CHILD: &str = "MANY_RANKS_CHILD";
const RANKS_PER_PROCESS: usize = 256;
const TIMEOUT: Duration = Duration::from_secs(300);
const SHORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Stack size of a rank's thread.
const STACK: usize = 256 << 10;
/// Time that ranks wait in a barrier.
const WAIT: Duration = Duration::from_secs(8);
const ENDS: [&str; 4] = ["death", "barrier", "exit", "missing"];

fn main() -> Outcome {
    let mut arguments = env::args().skip(1);
    let world: usize = arguments.next().ok_or("the number of ranks is missing")?.parse()?;
    let end = arguments.next().unwrap_or_else(|| "death".into());
    if world < 100 || !ENDS.contains(&end.as_str()) {
        return Err(
            "usage: many_ranks RANKS [death | barrier | exit | missing], with at least 100 ranks".into()
        );
    }
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    match env::var(CHILD) {
        Ok(child) => run_ranks(world, &end, &child),
        Err(_) => measure(world, &end),
    }
}

/// Seconds since 1970, comparable between processes.
fn now() -> Outcome<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

fn is_missing(rank: usize, world: usize) -> bool {
    rank == 3 || (17..=40).contains(&rank) || rank >= world / 2 && rank % 2 == 1
}

fn describe(result: burn_ddp_comm::Result<()>) -> String {
    result.err().map_or_else(|| "no error".into(), |error| error.to_string())
}

/// The ranks of one process. Prints the time when the last of them has met the others, and when it has ended.
fn run_ranks(world: usize, end: &str, child: &str) -> Outcome {
    let numbers: Vec<usize> = child.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let [first, count, port] = numbers[..] else { return Err("malformed".into()) };
    let ranks: Vec<usize> =
        (first..first + count).filter(|rank| end != "missing" || !is_missing(*rank, world)).collect();
    let (start, met) = (Barrier::new(ranks.len() + 1), Barrier::new(ranks.len() + 1));
    let (start, met) = (&start, &met);
    let rank_thread = move |rank: usize| -> Outcome<String> {
        let options = Options::default()
            .rank(rank)
            .world_size(world)
            .transport(Transport::Tcp)
            .secret(Secret::new("a secret for benchmarks")?)
            .rendezvous_timeout(if end == "missing" { SHORT_TIMEOUT } else { TIMEOUT });
        start.wait();
        let group = ProcessGroup::init(InitMethod::Tcp(format!("127.0.0.1:{port}")), options);
        met.wait();
        Ok(match group {
            Err(error) => error.to_string(),
            Ok(_) if end == "exit" => {
                start.wait();
                "left".into()
            }
            Ok(group) if end == "barrier" && rank + 1 < world => describe(group.barrier()),
            Ok(group) => describe(group.store().get("never set", TIMEOUT).map(drop)),
        })
    };
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for rank in ranks {
            let thread = thread::Builder::new().stack_size(STACK);
            threads.push(thread.spawn_scoped(scope, move || rank_thread(rank))?);
        }
        println!("READY");
        let mut line = String::new();
        io::stdin().read_line(&mut line)?;
        start.wait();
        met.wait();
        println!("{}", now()?);
        if end == "exit" {
            io::stdin().read_line(&mut line)?;
            start.wait();
        }
        let mut error = String::new();
        for thread in threads {
            error = thread.join().map_err(|_| "a rank panicked")??;
        }
        println!("{} {error}", now()?);
        Ok(())
    })
}

/// A process with ranks, killed when dropped.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(first: usize, count: usize, port: u16) -> Outcome<Self> {
        let mut child = Command::new(env::current_exe()?)
            .args(env::args().skip(1))
            .env(CHILD, format!("{first} {count} {port}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Process { child, output })
    }

    fn tell(&mut self) -> Outcome {
        Ok(self.child.stdin.as_mut().ok_or("no input")?.write_all(b"\n")?)
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() { Err("a process has ended".into()) } else { Ok(line.trim().into()) }
    }
}

fn measure(world: usize, end: &str) -> Outcome {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut processes = vec![Process::start(0, 1, port)?];
    for first in (1..world - 1).step_by(RANKS_PER_PROCESS) {
        processes.push(Process::start(first, RANKS_PER_PROCESS.min(world - 1 - first), port)?);
    }
    if end != "missing" {
        processes.push(Process::start(world - 1, 1, port)?);
    }
    for process in &mut processes {
        process.line()?;
    }
    let begun = now()?;
    for process in &mut processes {
        process.tell()?;
    }
    let mut met = 0f64;
    for process in &mut processes {
        met = met.max(process.line()?.parse()?);
    }
    if end == "barrier" {
        thread::sleep(WAIT);
    }
    let usage = if end == "missing" { String::new() } else { server_usage(processes[0].child.id(), port)? };
    let ending = if end == "missing" { begun + SHORT_TIMEOUT.as_secs_f64() } else { now()? };
    match end {
        "death" | "barrier" => drop(processes.pop()),
        "exit" => processes.iter_mut().try_for_each(Process::tell)?,
        _ => {}
    }
    let (mut last, mut error) = (0f64, String::new());
    for process in &mut processes {
        let line = process.line()?;
        let (time, text) = line.split_once(' ').ok_or("malformed")?;
        last = last.max(time.parse()?);
        error = text.into();
    }
    let (met, end_s) = (met - begun, last - ending);
    println!(
        "{{\"ranks\": {world}, \"end\": \"{end}\", \"met_s\": {met:.3}, \"end_s\": {end_s:.3}, {usage}\"error\": {error:?}}}"
    );
    Ok(())
}

/// Connections, bytes, threads, memory and processor time of rank 0's process, as JSON fields.
fn server_usage(pid: u32, port: u16) -> Outcome<String> {
    let sockets = Command::new("ss")
        .args(["-tinHO", "state", "established", "sport", "=", &format!(":{port}")])
        .output()
        .map_err(|error| format!("ss, of the package iproute2: {error}"))?;
    let sockets = String::from_utf8(sockets.stdout)?;
    let sum = |field: &str| -> u64 {
        let values = sockets.split_whitespace().filter_map(|word| word.strip_prefix(field));
        values.filter_map(|value| value.parse::<u64>().ok()).sum()
    };
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let of = |field: &str| -> String {
        let value = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or("0");
        value.trim().trim_end_matches(" kB").into()
    };
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // User and system time, in units of 10 ms.
    let ticks: u64 = stat.split(' ').skip(13).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    Ok(format!(
        "\"connections\": {}, \"sent\": {}, \"received\": {}, \"threads\": {}, \"rss_kib\": {}, \"cpu_s\": {:.2}, ",
        sockets.lines().count(),
        sum("bytes_sent:"),
        sum("bytes_received:"),
        of("Threads:"),
        of("VmRSS:"),
        ticks as f64 / 100.0
    ))
}
