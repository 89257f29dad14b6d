//! Output of the ranks: inherited, prefixed with the rank, written to files, or both.

use super::environment::Round;
use anyhow::{Context, Result};
use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write, stderr, stdout},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Number of last lines of a rank that a failure report shows.
const LAST_LINES: usize = 10;
/// Maximum characters of such a line.
const LAST_WIDTH: usize = 300;
/// Maximum bytes of a line; longer lines are split.
const LONGEST: u64 = 64 << 10;

/// Destination of the ranks' output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The launcher's own output, unchanged: rank 0 may draw on the terminal.
    Inherited,
    /// The launcher's own output, each line prefixed with `[rank0] `.
    Prefixed,
    /// Files such as `DIR/JOB/attempt0/rank0.stdout.log`; with `tee`, prefixed on the launcher's output as
    /// well.
    Filed { dir: PathBuf, tee: bool },
}

#[derive(Clone, Copy)]
enum Stream {
    Out,
    Err,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Stream::Out => "stdout",
            Stream::Err => "stderr",
        }
    }

    /// Writes a line in one call, so that lines of different ranks do not mix. A closed reader does not stop
    /// the job.
    fn write(self, line: &[u8]) {
        let _ = match self {
            Stream::Out => stdout().lock().write_all(line).and_then(|()| stdout().flush()),
            Stream::Err => stderr().lock().write_all(line),
        };
    }
}

impl Output {
    /// Standard output and error of a rank's process: pipes, if the launcher reads them.
    pub fn stdio(&self) -> Stdio {
        match self {
            Output::Inherited => Stdio::inherit(),
            Output::Prefixed | Output::Filed { .. } => Stdio::piped(),
        }
    }

    /// The folder of a round's files, created if necessary; `None` if there are no files.
    ///
    /// Each job has its own folder, which its machines may share.
    ///
    /// # Errors
    /// If the folder cannot be created. The error names it.
    pub fn folder(&self, round: &Round) -> Result<Option<PathBuf>> {
        let Output::Filed { dir, .. } = self else { return Ok(None) };
        let folder = dir.join(&round.run_id).join(format!("attempt{}", round.restarts));
        fs::create_dir_all(&folder)
            .with_context(|| format!("--log-dir: cannot create the folder {}", folder.display()))?;
        Ok(Some(folder))
    }

    fn on_screen(&self) -> bool {
        match self {
            Output::Inherited => false,
            Output::Prefixed => true,
            Output::Filed { tee, .. } => *tee,
        }
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
    /// Starts threads that read the output of `child`, which is rank `rank`, and write it to files in `folder`. If it
    /// replaces another process, the files of that are continued.
    ///
    /// # Errors
    /// If a file cannot be created. The error names it.
    pub fn start(
        child: &mut Child,
        rank: usize,
        output: &Output,
        folder: Option<&Path>,
        replaces: bool,
    ) -> Result<Self> {
        let mut listener = Listener::default();
        let stdout = child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        let stderr = child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        listener.log = folder.map(|folder| folder.join(format!("rank{rank}.*.log")).display().to_string());
        for (stream, pipe) in [(Stream::Out, stdout), (Stream::Err, stderr)] {
            let Some(pipe) = pipe else { continue };
            let file = folder
                .map(|folder| {
                    let path = folder.join(format!("rank{rank}.{}.log", stream.name()));
                    let mut options = File::options();
                    options.append(true).create(replaces).create_new(!replaces);
                    options.open(&path).with_context(|| format!("cannot write {}", path.display()))
                })
                .transpose()?;
            let prefix = output.on_screen().then(|| format!("[rank{rank}] "));
            let last = listener.last.clone();
            listener.threads.push(thread::spawn(move || copy(pipe, stream, prefix, file, &last)));
        }
        Ok(listener)
    }

    /// Waits until all output has been forwarded, at most until `until`.
    ///
    /// A process that the rank has started may keep the pipes open.
    pub fn finish(&mut self, until: Instant) {
        while self.threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// The rank's last lines on standard output and standard error.
    pub fn last_lines(&self) -> Vec<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Forwards lines until the pipe is closed.
fn copy(
    pipe: impl Read,
    stream: Stream,
    prefix: Option<String>,
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
            Stream::Err.write(format!("cannot write a log file: {error}\n").as_bytes());
            file = None;
        }
        if let Some(prefix) = &prefix {
            let mut shown = prefix.clone().into_bytes();
            shown.extend(&line);
            if !line.ends_with(b"\n") {
                shown.push(b'\n');
            }
            stream.write(&shown);
        }
        let text: String = String::from_utf8_lossy(&line).trim_end().chars().take(LAST_WIDTH).collect();
        if !text.is_empty() {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn the_last_lines_are_kept_and_everything_is_filed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("log");
        let text: String = (0..30).map(|n| format!("line {n}\n\n")).collect::<String>() + "no end";
        let last = Mutex::default();
        copy(text.as_bytes(), Stream::Out, None, Some(File::create(&path).expect("file")), &last);
        assert_eq!(fs::read_to_string(&path).expect("log"), text);
        let last = last.into_inner().expect("no panic");
        assert_eq!(last.len(), LAST_LINES);
        assert_eq!(last.back().map(String::as_str), Some("no end"));
        assert_eq!(last.front().map(String::as_str), Some("line 21"));
    }

    #[test]
    fn a_line_without_end_is_passed_on_in_pieces() {
        let last = Mutex::default();
        let endless = std::io::repeat(b'x').take(3 * LONGEST);
        copy(endless, Stream::Out, None, None, &last);
        assert_eq!(last.into_inner().expect("no panic").len(), 3);
    }
}
