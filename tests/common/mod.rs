//! Runs the real program as a process, with a deadline around every wait.
#![allow(dead_code)] // each test file uses its own part

pub mod launched;
pub mod reference;

use serde_json::Value;
use std::{
    fs,
    io::Read,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// No test command takes longer unless something hangs. A graphics driver in software takes minutes
/// for the kernels of a first step.
pub const DEADLINE: Duration =
    Duration::from_secs(if cfg!(any(feature = "vulkan", feature = "wgpu")) { 1800 } else { 300 });

/// The `burn-ddp` program.
pub fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_burn-ddp"))
}

/// An example that cargo built beside it.
pub fn example(name: &str) -> PathBuf {
    program().parent().expect("in target/debug").join("examples").join(name)
}

/// The program of the MNIST example, which trains.
pub fn mnist() -> PathBuf {
    let program = example("mnist_ddp");
    assert!(program.is_file(), "{} is missing: cargo build --example mnist_ddp", program.display());
    program
}

/// What a command did.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// The outcome, after checking that it is a success.
    pub fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// Standard error, after checking that it says so in one or two lines and that the code is not 0.
    pub fn failed_saying(&self, words: &[&str]) -> &str {
        assert!(self.code.is_some_and(|code| code != 0), "{self:#?}");
        let lines = self.stderr.lines().filter(|line| !line.trim().is_empty()).count();
        assert!((1..=2).contains(&lines), "one or two lines, not {lines}: {}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "should name `{word}`: {}", self.stderr);
        }
        &self.stderr
    }
}

/// Reads a pipe to its end on a thread, so that a full pipe never stops the program.
fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// A command without the environment of whoever runs the tests, in a process group of its own.
pub fn command(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    for name in
        ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MNIST_DIR"]
    {
        command.env_remove(name);
    }
    // A script's background job has SIGINT ignored, and the program would keep that.
    // SAFETY: `signal` may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        })
    };
    command
}

/// Waits for a started command; kills it and all it started when the deadline passes.
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
    let (stdout, stderr) = (stdout.join().expect("reader"), stderr.join().expect("reader"));
    Outcome { code: status.code(), stdout, stderr }
}

/// Runs `mnist_ddp` with these flags, separated by blanks.
pub fn train(flags: &str) -> Outcome {
    let args: Vec<&str> = flags.split_whitespace().collect();
    finish(command(&mnist(), &args).spawn().expect("the program was built"))
}

/// A finished run's folder.
pub struct Run {
    pub path: PathBuf,
    /// Removed with it, if it is this run's own.
    _folder: Option<TempDir>,
}

/// Trains on the CPU into a fresh folder and checks that it worked.
pub fn trained(flags: &str) -> Run {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("run");
    train(&format!("--device cpu --progress plain --run-dir {} {flags}", path.display())).succeeded();
    Run { path, _folder: Some(folder) }
}

impl Run {
    /// In a temporary folder, which is removed with it.
    pub fn within(path: PathBuf, folder: TempDir) -> Self {
        Self { path, _folder: Some(folder) }
    }

    /// In a folder that somebody else removes.
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

    /// One column of one table.
    pub fn column(&self, table: &str, column: &str) -> Vec<f64> {
        let mut table = csv::Reader::from_path(self.path.join(table)).expect("a table");
        let at = table.headers().expect("a header").iter().position(|h| h == column).expect("the column");
        table.records().map(|row| row.expect("a row")[at].parse().expect("a number")).collect()
    }

    pub fn losses(&self) -> Vec<f64> {
        self.column("steps.csv", "loss")
    }
}

/// Fails unless both are equally long and nowhere further apart than `tolerance`.
pub fn assert_close(what: &str, ours: &[f64], theirs: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), theirs.len(), "{what}: length");
    let worst = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("{what}: largest difference {worst:.2e}, allowed {tolerance:.0e}");
    assert!(worst <= tolerance, "{what}: {worst} is more than {tolerance}\n{ours:?}\n{theirs:?}");
}

/// Processes whose environment holds `marker`, as `/proc` shows them.
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
