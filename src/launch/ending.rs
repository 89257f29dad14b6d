//! How a round ends, in words and as an exit code.

use crate::{console::last_words, exit, stop};
use serde::{Deserialize, Serialize};
use std::{
    os::unix::process::ExitStatusExt,
    process::{ExitCode, ExitStatus},
};

/// How a round ended, the same on all machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ending {
    /// Every rank ended well.
    Done,
    /// This rank failed first.
    Failed(Failure),
    /// A launcher was told to stop, by this signal.
    Stopped { signal: i32 },
    /// A machine's launcher is gone, or could not start its ranks.
    Lost { node: usize, reason: String },
}

/// The first rank that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    pub rank: usize,
    pub world_size: usize,
    /// Where it ran, in words; empty on a job of one machine.
    pub place: String,
    pub how: How,
    /// Seconds since the round began.
    pub seconds: f64,
    /// What it said last, if the launcher reads its output.
    pub last_lines: Vec<String>,
    /// Where all of its output is, if it is kept.
    pub log: Option<String>,
}

/// How a process ended badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    Exited(i32),
    Killed(i32),
    /// Not ended, but stopped by this signal for longer than the others can be asked to wait.
    Stopped(i32),
}

impl How {
    /// What `status` says, `None` for a success.
    pub fn of(status: ExitStatus) -> Option<Self> {
        match (status.code(), status.signal()) {
            (Some(0), _) => None,
            (Some(code), _) => Some(How::Exited(code)),
            (None, Some(signal)) => Some(How::Killed(signal)),
            // A status that is neither does not come from a process that has ended.
            (None, None) => Some(How::Exited(1)),
        }
    }

    /// The signal by which this rank was asked to stop, if it then ended in good order.
    pub fn asked_by(self) -> Option<i32> {
        match self {
            How::Exited(code) => exit::asked_by(code),
            How::Killed(_) | How::Stopped(_) => None,
        }
    }

    /// The exit code that passes it on, as a shell does.
    fn code(self) -> u8 {
        let code = match self {
            How::Exited(code) => code,
            How::Killed(signal) | How::Stopped(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

impl std::fmt::Display for How {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            How::Exited(code) => write!(f, "exited with code {code}"),
            How::Stopped(signal) => {
                write!(f, "was stopped by signal {signal} ({}) and not continued", stop::name(signal))
            }
            How::Killed(signal) => {
                // The kernel's way to free memory leaves no other trace in the process.
                let guess = if signal == libc::SIGKILL { ", perhaps for want of memory" } else { "" };
                write!(f, "was killed by signal {signal} ({}{guess})", stop::name(signal))
            }
        }
    }
}

impl Ending {
    /// The launcher's exit code: 0, the first failing rank's, or 128 + signal.
    pub fn code(&self) -> u8 {
        match self {
            Ending::Done => 0,
            Ending::Failed(failure) => failure.how.code(),
            Ending::Stopped { signal } => u8::try_from(128 + signal).unwrap_or(1),
            Ending::Lost { .. } => 1,
        }
    }

    /// What there is to say about it, and what comes of it. Nothing if all is well, or as asked.
    fn words(&self, consequence: &str) -> Option<String> {
        match self {
            Ending::Done | Ending::Stopped { .. } => None,
            Ending::Lost { node, reason } => Some(format!("node {node} {reason}; {consequence}")),
            Ending::Failed(failure) => {
                let Failure { rank, world_size, place, how, seconds, last_lines, log } = failure;
                let mut words = format!("rank {rank} of {world_size}{place} {how} after {seconds:.1} s");
                let kept = log.as_ref().map(|log| format!(" (all of it: {log})")).unwrap_or_default();
                if last_lines.is_empty() {
                    words += &kept;
                } else {
                    words += &format!(", the first to fail; its last lines{kept}:");
                    for line in last_lines {
                        words += &format!("\n    {line}");
                    }
                    words.push('\n');
                    return Some(words + consequence);
                }
                Some(format!("{words}; {consequence}"))
            }
        }
    }

    /// Says what the ranks could not say themselves and what comes of it; gives the exit code.
    pub fn report(&self, consequence: &str) -> ExitCode {
        if let Some(words) = self.words(consequence) {
            last_words(&words);
        }
        ExitCode::from(self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(how: How, last_lines: &[&str]) -> Ending {
        Ending::Failed(Failure {
            rank: 1,
            world_size: 4,
            place: " on node 2 (host b)".into(),
            how,
            seconds: 2.04,
            last_lines: last_lines.iter().map(|line| line.to_string()).collect(),
            log: None,
        })
    }

    #[test]
    fn codes_are_a_shells() {
        assert_eq!(Ending::Done.code(), 0);
        assert_eq!(failure(How::Exited(3), &[]).code(), 3);
        assert_eq!(failure(How::Killed(9), &[]).code(), 137);
        assert_eq!(Ending::Stopped { signal: 15 }.code(), 143);
    }

    #[test]
    fn words_name_rank_place_manner_and_last_lines() {
        let words = failure(How::Killed(11), &["a", "b"]).words("the job was stopped").expect("words");
        assert_eq!(
            words,
            "rank 1 of 4 on node 2 (host b) was killed by signal 11 (SIGSEGV) after 2.0 s, the first to fail; its last lines:\n    a\n    b\nthe job was stopped"
        );
        let words = failure(How::Exited(3), &[]).words("restart 1 of 2").expect("words");
        assert!(words.ends_with("exited with code 3 after 2.0 s; restart 1 of 2"), "{words}");
        assert_eq!(Ending::Done.words(""), None);
    }
}
