//! What a program's end means: errors with their exit codes, said once.

use crate::{console::last_words, stop};
use collective::Error;
use std::{
    process::ExitCode,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

/// Something failed here.
pub const FAILED: u8 = 1;
/// Another rank failed first; it has the reason. `EX_TEMPFAIL` of sysexits.h.
pub const OTHER_RANK_FAILED: u8 = 75;

/// The code of a rank that was asked to stop by `signal`, and did so in good order: the shell's for a
/// process that a signal ended.
pub fn stopped_by(signal: u8) -> u8 {
    signal.saturating_add(128)
}

/// The signal that a rank with this exit code was asked to stop by.
pub fn asked_by(code: i32) -> Option<i32> {
    let signal = code - 128;
    [libc::SIGINT, libc::SIGTERM].contains(&signal).then_some(signal)
}

/// Set by our launcher, which reports the first failing rank itself.
pub const LAUNCHED: &str = "BURN_DDP_LAUNCHED";

/// Time for the rank that failed first to say why, and for the launcher to see it.
const FIRST_SAY: Duration = Duration::from_secs(2);

/// The rank given by a flag.
static RANK: OnceLock<usize> = OnceLock::new();

/// Sets the rank that errors of this process name, where no launcher's variable does.
pub fn name_rank(rank: usize) {
    // The command line is read once.
    let _ = RANK.set(rank);
}

fn own_rank() -> Option<String> {
    RANK.get().map(usize::to_string).or_else(|| std::env::var("RANK").ok())
}

/// Turns a program's result into its exit code, and an error into a line on standard error.
///
/// A rank that only suffers from another's failure stays silent for a while under our launcher, which
/// ends it if another rank has failed by itself: that one's error is what the user should read. If none
/// has, because the network broke for one, there is no better reason than this rank's.
pub fn report(result: anyhow::Result<ExitCode>) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    let consequence = error.chain().filter_map(|e| e.downcast_ref::<Error>()).any(is_consequence);
    let until = Instant::now() + FIRST_SAY;
    while consequence && std::env::var_os(LAUNCHED).is_some() && Instant::now() < until {
        if stop::asked() > 0 {
            return ExitCode::from(OTHER_RANK_FAILED);
        }
        thread::sleep(Duration::from_millis(10));
    }
    let who = own_rank().map(|rank| format!("rank {rank}: ")).unwrap_or_default();
    last_words(&format!("error: {who}{error:#}"));
    ExitCode::from(if consequence { OTHER_RANK_FAILED } else { FAILED })
}

/// Whether `error` only says that another rank is gone.
fn is_consequence(error: &Error) -> bool {
    match error {
        Error::PeerLost { .. } => true,
        Error::Poisoned(first) => is_consequence(first),
        // That rank says it itself.
        Error::Remote { rank, .. } => other_rank(*rank),
        // All ranks have found the same; rank 0 reports it.
        Error::SettingsDiffer { .. }
        | Error::Diverged { .. }
        | Error::NonFinite { .. }
        | Error::LossScale { .. } => other_rank(0),
        _ => false,
    }
}

/// Whether this process is another rank than `rank`.
fn other_rank(rank: usize) -> bool {
    own_rank().is_some_and(|own| own != rank.to_string())
}
