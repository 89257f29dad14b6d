//! Runs the real programs as processes, with a deadline for every wait.
#![allow(dead_code)] // each test file uses its own part

pub mod events;
pub mod gpu_check;
pub mod launched;
pub mod reference;

use serde_json::Value;
use std::{
    fs,
    io::Read,
    net::TcpListener,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Maximum duration of a command.
///
/// A software graphics driver takes minutes for the kernels of a first step.
pub const DEADLINE: Duration =
    Duration::from_secs(if cfg!(any(feature = "vulkan", feature = "wgpu")) { 1800 } else { 300 });

/// A free port below those that the system assigns, so that no other program gets it before its use.
pub fn free_port() -> u16 {
    static DRAWN: AtomicU16 = AtomicU16::new(0);
    // 100 ports for each process.
    let first = 10_000 + (std::process::id() % 200) as u16 * 100;
    let mut ports = (0..100).map(|_| first + DRAWN.fetch_add(1, Relaxed) % 100);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}

/// Copies a run's folder, without its links.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("folder");
    for entry in fs::read_dir(from).expect("folder") {
        let (path, kind) = entry.map(|e| (e.path(), e.file_type().expect("type"))).expect("entry");
        let target = to.join(path.file_name().expect("name"));
        if kind.is_dir() {
            copy_folder(&path, &target);
        } else if kind.is_file() {
            fs::copy(&path, &target).expect("copied");
        }
    }
}

/// Path of the program `burn-ddp`.
pub fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_burn-ddp"))
}

/// Folder of the examples, which cargo builds into the same target folder.
pub fn examples() -> PathBuf {
    program().parent().expect("in target/debug").join("examples")
}

/// Path of an example.
pub fn example(name: &str) -> PathBuf {
    let path = examples().join(name);
    assert!(path.is_file(), "{} is missing: cargo build --example {name}", path.display());
    path
}

/// Path of the MNIST example.
pub fn mnist() -> PathBuf {
    example("mnist_ddp")
}

/// Result of a command.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// Returns the outcome if the command succeeded; panics otherwise.
    pub fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// Returns standard error if the command failed with one or two lines that contain `words`; panics otherwise.
    pub fn failed_with(&self, words: &[&str]) -> &str {
        assert!(self.code.is_some_and(|code| code != 0), "{self:#?}");
        let lines = self.stderr.lines().filter(|line| !line.trim().is_empty()).count();
        assert!((1..=2).contains(&lines), "one or two lines, not {lines}: {}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "should name `{word}`: {}", self.stderr);
        }
        &self.stderr
    }
}

/// Reads a pipe to its end on a thread, so that a full pipe never blocks the program.
fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// A command with a clean environment, in its own process group.
pub fn command(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    for name in
        ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MNIST_DIR"]
    {
        command.env_remove(name);
    }
    // A shell ignores SIGINT in background jobs, and child processes inherit that.
    // SAFETY: `signal` may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        })
    };
    command
}

/// Waits for a started command. Kills its process group at the deadline. Warnings of a slow rank are left out of standard
/// error: whether a rank is slow depends on what else the machine does.
pub fn finish(mut child: Child) -> Outcome {
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let deadline = Instant::now() + DEADLINE;
    let status = loop {
        match child.try_wait().expect("our own child") {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
                let text = stderr.join().expect("reader");
                panic!("still running after {DEADLINE:?}; standard error was: {text}");
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    let (stdout, mut stderr) = (stdout.join().expect("reader"), stderr.join().expect("reader"));
    if stderr.contains(" is slow: ") {
        stderr = stderr.split_inclusive('\n').filter(|line| !line.contains(" is slow: ")).collect();
    }
    Outcome { code: status.code(), stdout, stderr }
}

/// The command of an example with these flags, separated by spaces.
pub fn example_command(name: &str, flags: &str) -> Command {
    command(&example(name), &flags.split_whitespace().collect::<Vec<_>>())
}

/// Runs an example with these flags, separated by spaces.
pub fn run_example(name: &str, flags: &str) -> Outcome {
    finish(example_command(name, flags).spawn().expect("the program was built"))
}

/// Runs `mnist_ddp` with these flags, separated by spaces.
pub fn train(flags: &str) -> Outcome {
    run_example("mnist_ddp", flags)
}

/// Folder of a finished run.
pub struct Run {
    pub path: PathBuf,
    /// The temporary folder that contains it, if any, which is removed with this value.
    _folder: Option<TempDir>,
}

/// Trains on the CPU into a temporary folder; panics if that fails.
pub fn trained(flags: &str) -> Run {
    let run = Run::new();
    train(&format!("--device cpu --progress plain --run-dir {} {flags}", run.path.display())).succeeded();
    run
}

impl Run {
    /// A run that does not exist yet, in a temporary folder, which is removed with this value.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        Self { path: folder.path().join("run"), _folder: Some(folder) }
    }

    /// A copy in a temporary folder, which is removed with this value.
    pub fn copied(&self) -> Self {
        let copy = Self::new();
        copy_folder(&self.path, &copy.path);
        copy
    }

    /// A run in a folder that the caller removes.
    pub fn at(path: PathBuf) -> Self {
        Self { path, _folder: None }
    }

    pub fn model_bytes(&self) -> usize {
        fs::read(self.path.join("model.bpk")).expect("a model").len()
    }

    pub fn json(&self, name: &str) -> Value {
        let text = fs::read(self.path.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        serde_json::from_slice(&text).expect("JSON")
    }

    pub fn summary(&self) -> Value {
        self.json("summary.json")
    }

    pub fn digest(&self) -> String {
        self.summary()["parameter_digest"].as_str().expect("a digest").to_owned()
    }

    /// A column of a table.
    pub fn column(&self, table: &str, column: &str) -> Vec<f64> {
        let mut table = csv::Reader::from_path(self.path.join(table)).expect("a table");
        let at = table.headers().expect("a header").iter().position(|h| h == column).expect("the column");
        table.records().map(|row| row.expect("a row")[at].parse().expect("a number")).collect()
    }

    /// The digest of a run of two ranks.
    pub fn digest_of_two(&self) -> String {
        assert_eq!(self.summary()["world_size"], 2, "{:#}", self.summary());
        self.digest()
    }

    pub fn losses(&self) -> Vec<f64> {
        self.column("steps.csv", "loss")
    }
}

/// Panics unless both have the same length and differ by at most `tolerance` everywhere.
pub fn assert_close(what: &str, ours: &[f64], theirs: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), theirs.len(), "{what}: length");
    let worst = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("{what}: largest difference {worst:.2e}, allowed {tolerance:.0e}");
    assert!(worst <= tolerance, "{what}: {worst} is more than {tolerance}\n{ours:?}\n{theirs:?}");
}

/// Processes whose environment contains `marker`, from `/proc`.
pub fn processes_with(marker: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|env| contains(&env, marker.as_bytes()))
    })
    .collect()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
