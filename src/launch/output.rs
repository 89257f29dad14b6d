//! Output of the ranks: inherited, prefixed with the rank, written to files, or both.

use super::environment::Round;
use crate::process::{console::eprint_line, lock};
use anyhow::{Context, Result};
use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write, stderr, stdout},
    os::fd::OwnedFd,
    path::PathBuf,
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Number of last lines of a rank that a failure report shows.
const LAST_LINES: usize = 10;
/// Maximum characters of such a line.
const LAST_WIDTH: usize = 300;
/// Maximum bytes of a line; longer lines are split.
const LONGEST: u64 = 64 << 10;

/// Destination of the ranks' output; by default the launcher's own, unchanged, so that rank 0 may draw on the terminal.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// The launcher's own output, each line prefixed with `[rank0] `.
    pub prefixed: bool,
    /// Folder of files such as `JOB/attempt0/rank0.stdout.log`.
    pub dir: Option<PathBuf>,
}

/// Writes a line in one call, so that lines of different ranks do not mix.
type WriteLine = fn(&[u8]) -> io::Result<()>;

impl Output {
    /// Whether the ranks inherit the launcher's output, which does not read it.
    pub fn is_inherited(&self) -> bool {
        !self.prefixed && self.dir.is_none()
    }

    /// Standard output and error of a rank's process: pipes, if the launcher reads them.
    pub fn stdio(&self) -> Stdio {
        if self.is_inherited() { Stdio::inherit() } else { Stdio::piped() }
    }

    /// The folder of a round's files, if there are files.
    ///
    /// Each job has its own folder, which its machines may share.
    fn folder(&self, round: &Round) -> Option<PathBuf> {
        Some(self.dir.as_ref()?.join(&round.run_id).join(format!("attempt{}", round.restarts)))
    }

    /// Creates the folder of a round's files, if there are files, and prints it.
    ///
    /// # Errors
    /// If the folder cannot be created. The error names it.
    pub fn begin(&self, round: &Round) -> Result<()> {
        let Some(folder) = self.folder(round) else { return Ok(()) };
        fs::create_dir_all(&folder)
            .with_context(|| format!("--log-dir: cannot create the folder {}", folder.display()))?;
        eprint_line(&format!("log files of this job: {}", folder.display()));
        Ok(())
    }
}

/// Reads the output of a rank until all processes that hold its pipes have closed them.
#[derive(Debug, Default)]
pub struct Listener {
    threads: Vec<JoinHandle<()>>,
    last: Arc<Mutex<VecDeque<String>>>,
    /// Pattern of the rank's files, for messages.
    pub log: Option<String>,
}

impl Listener {
    /// Starts threads that read the output of `child`, which is rank `rank`, and write it to files. If it replaces
    /// another process, the files of that are continued.
    ///
    /// # Errors
    /// If a file cannot be created. The error names it.
    pub fn start(child: &mut Child, rank: usize, output: &Output, round: &Round) -> Result<Self> {
        let (mut listener, folder) = (Listener::default(), output.folder(round));
        let (folder, replaces) = (folder.as_deref(), round.generation.number > 0);
        let out = child.stdout.take().map(|pipe| File::from(OwnedFd::from(pipe)));
        let err = child.stderr.take().map(|pipe| File::from(OwnedFd::from(pipe)));
        let to_out: WriteLine = |line| stdout().lock().write_all(line).and_then(|()| stdout().flush());
        let to_err: WriteLine = |line| stderr().lock().write_all(line);
        listener.log = folder.map(|folder| folder.join(format!("rank{rank}.*.log")).display().to_string());
        for (name, pipe, write) in [("stdout", out, to_out), ("stderr", err, to_err)] {
            let Some(pipe) = pipe else { continue };
            let file = folder
                .map(|folder| {
                    let path = folder.join(format!("rank{rank}.{name}.log"));
                    let mut options = File::options();
                    options.append(true).create(replaces).create_new(!replaces);
                    options.open(&path).with_context(|| format!("cannot write {}", path.display()))
                })
                .transpose()?;
            let screen = output.prefixed.then(|| (format!("[rank{rank}] "), write));
            let last = listener.last.clone();
            let forward = move || copy(pipe, screen, file, &last);
            let thread =
                thread::Builder::new().spawn(forward).context("cannot start a thread for a rank's output")?;
            listener.threads.push(thread);
        }
        Ok(listener)
    }

    /// Waits until all output has been forwarded, at most until `until`.
    ///
    /// A process that the rank has started may keep the pipes open.
    pub fn finish(&self, until: Instant) {
        while self.threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// The rank's last lines on standard output and standard error.
    pub fn last_lines(&self) -> Vec<String> {
        lock(&self.last).iter().cloned().collect()
    }
}

/// Forwards lines until the pipe is closed, on the screen with a prefix.
fn copy(
    pipe: impl Read,
    screen: Option<(String, WriteLine)>,
    mut file: Option<File>,
    last: &Mutex<VecDeque<String>>,
) {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut pipe).take(LONGEST).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if let Some(log) = &mut file
            && let Err(error) = log.write_all(&line)
        {
            eprint_line(&format!("cannot write a log file: {error}"));
            file = None;
        }
        if let Some((prefix, write)) = &screen {
            let mut shown = prefix.clone().into_bytes();
            shown.extend(&line);
            if !line.ends_with(b"\n") {
                shown.push(b'\n');
            }
            // A closed reader does not stop the job.
            let _ = write(&shown);
        }
        let text: String = String::from_utf8_lossy(&line).trim_end().chars().take(LAST_WIDTH).collect();
        if !text.is_empty() {
            let mut last = lock(last);
            if last.len() == LAST_LINES {
                last.pop_front();
            }
            last.push_back(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_is_passed_on_in_pieces() {
        let last = Mutex::default();
        let endless = std::io::repeat(b'x').take(3 * LONGEST);
        copy(endless, None, None, &last);
        assert_eq!(last.into_inner().expect("no panic").len(), 3);
    }
}
