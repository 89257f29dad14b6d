//! News and outcome of a round, what the launchers of all machines do because of them, and the message and exit code.

use super::generation::{FromRank, Generation};
use crate::process::{console::eprint_line, exit, stop};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// Outcome of a rank, or of a round, which is equal on all machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// The rank, or every rank, succeeded.
    Done,
    /// The rank failed, or was the first that failed.
    Failed(Failure),
    /// A launcher received this stop signal.
    Stopped { signal: i32 },
    /// A machine's launcher is gone or could not start its ranks.
    Lost { node: usize, reason: String },
}

/// The first rank that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Its rank at the start of the round.
    pub rank: usize,
    pub world_size: usize,
    /// Machine on which it ran, for messages; empty in a job of one machine.
    pub place: String,
    pub how: ExitReason,
    /// Seconds since the round began.
    pub seconds: f64,
    /// Its last lines, if the launcher reads its output.
    pub last_lines: Vec<String>,
    /// Files with all of its output, if there are any.
    pub log: Option<String>,
}

/// How a rank's process failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitReason {
    Exited(i32),
    Killed(i32),
    /// Stopped by this signal for too long, but not ended.
    Stopped(i32),
}

impl ExitReason {
    /// The stop signal because of which the rank exited cleanly, if it did.
    pub fn stop_signal(self) -> Option<i32> {
        match self {
            ExitReason::Exited(code) => exit::stop_signal(code),
            ExitReason::Killed(_) | ExitReason::Stopped(_) => None,
        }
    }

    /// Whether the rank failed because of another rank.
    pub fn is_consequence(self) -> bool {
        self == ExitReason::Exited(exit::OTHER_RANK_FAILED.into())
    }

    /// The exit code for this failure, as a shell reports it.
    fn code(self) -> u8 {
        let code = match self {
            ExitReason::Exited(code) => code,
            ExitReason::Killed(signal) | ExitReason::Stopped(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

impl std::fmt::Display for ExitReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            ExitReason::Exited(code) => write!(f, "exited with code {code}"),
            ExitReason::Stopped(signal) => {
                write!(f, "was stopped by signal {signal} ({}) and not continued", stop::name(signal))
            }
            ExitReason::Killed(signal) => {
                // The out-of-memory killer leaves no other trace in the process.
                let guess = if signal == libc::SIGKILL { ", possibly out of memory" } else { "" };
                write!(f, "was killed by signal {signal} ({}{guess})", stop::name(signal))
            }
        }
    }
}

impl Outcome {
    /// The launcher's exit code: 0, that of the first failing rank, or 128 + signal.
    pub fn code(&self) -> u8 {
        match self {
            Outcome::Done => 0,
            Outcome::Failed(failure) => failure.how.code(),
            Outcome::Stopped { signal } => u8::try_from(128 + signal).unwrap_or(1),
            Outcome::Lost { .. } => 1,
        }
    }

    /// Prints the message for this outcome, followed by `consequence`, and returns the exit code. Success and requested
    /// stops have no message.
    pub fn report(&self, consequence: &str) -> ExitCode {
        match self {
            Outcome::Done | Outcome::Stopped { .. } => {}
            Outcome::Lost { node, reason } => eprint_line(&format!("node {node} {reason}; {consequence}")),
            Outcome::Failed(Failure { rank, world_size, place, how, seconds, last_lines, log }) => {
                let log = log.as_ref().map(|log| format!(" (complete output: {log})")).unwrap_or_default();
                let rest = if last_lines.is_empty() {
                    format!("{log}; {consequence}")
                } else {
                    let lines: String = last_lines.iter().map(|line| format!("\n    {line}")).collect();
                    format!(", the first to fail; its last lines{log}:{lines}\n{consequence}")
                };
                eprint_line(&format!("rank {rank} of {world_size}{place} {how} after {seconds:.1} s{rest}"));
            }
        }
        ExitCode::from(self.code())
    }
}

/// What happens in a round.
#[derive(Debug, Serialize, Deserialize)]
pub enum News {
    /// A process has sent a message about its group. The number is its rank at the start of the round.
    Message(usize, FromRank),
    /// A rank has ended, a machine is lost, or there is a stop signal.
    Outcome(Outcome),
}

/// What all launchers do because of the news of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Decision {
    /// End the round.
    End(Outcome),
    /// Begin this generation, with new processes for the ranks that have failed, and without lost machines.
    Replace { generation: Generation, failures: Vec<Failure>, lost: Vec<Outcome> },
    /// Kill these ranks, or those of them that are stopped, so that the group can be complete again.
    Kill { ranks: Vec<usize>, only_stopped: bool },
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Outcome {
        /// The failure of a rank without output.
        pub fn failure(rank: usize, how: ExitReason) -> Outcome {
            let (world_size, place, seconds, last_lines, log) = (4, String::new(), 1.0, Vec::new(), None);
            Outcome::Failed(Failure { rank, world_size, place, how, seconds, last_lines, log })
        }
    }
}
