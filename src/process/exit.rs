//! Exit codes and error reporting.

use crate::process::{auto_batch::halves_batch, console::eprint_line, stop};
use collective::{Error, health};
use std::{
    process::ExitCode,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

/// Exit code of a process that failed by itself.
pub const FAILED: u8 = 1;
/// Exit code of a rank that failed because of another rank: `EX_TEMPFAIL` of sysexits.h.
pub const OTHER_RANK_FAILED: u8 = 75;
/// Exit code of a rank that is to be started again with half the batch: the first one after those of sysexits.h.
pub const BATCH_TOO_LARGE: u8 = 79;

/// Exit code of a clean exit after a stop signal: 128 + signal, as in a shell.
pub fn signal_code(signal: u8) -> u8 {
    signal.saturating_add(128)
}

/// Returns the stop signal of an exit code, the inverse of [`signal_code`].
pub fn stop_signal(code: i32) -> Option<i32> {
    let signal = code - 128;
    stop::SIGNALS.contains(&signal).then_some(signal)
}

/// Environment variable set by this crate's launcher, which reports the first failing rank itself.
pub const LAUNCHED: &str = "BURN_DDP_LAUNCHED";

/// Time for the first failed rank to report and for the launcher to detect it.
const ROOT_CAUSE_GRACE: Duration = Duration::from_secs(2);

/// Rank set by `--rank`.
static RANK: OnceLock<usize> = OnceLock::new();

/// Sets the rank in error messages of this process, for processes without a launcher.
pub(crate) fn set_rank(rank: usize) {
    // The command line is parsed once.
    let _ = RANK.set(rank);
}

fn own_rank() -> Option<usize> {
    RANK.get().copied().or_else(|| std::env::var("RANK").ok()?.parse().ok())
}

/// Converts a program's result into its exit code and prints an error to standard error.
///
/// Under this crate's launcher, a rank that failed because of another rank waits before it prints. The launcher
/// terminates it if another rank reports the root cause. Otherwise, for example after a network failure, this
/// rank's error is printed.
pub fn report(result: anyhow::Result<ExitCode>) -> ExitCode {
    // A device may have dropped work whose result was never read.
    let error = match result.and_then(|code| Ok(health::check().map(|()| code)?)) {
        Ok(code) => return code,
        Err(error) => error,
    };
    let consequence = is_consequence(&error, own_rank());
    let until = Instant::now() + ROOT_CAUSE_GRACE;
    while consequence && std::env::var_os(LAUNCHED).is_some() && Instant::now() < until {
        if stop::requested() > 0 {
            return ExitCode::from(OTHER_RANK_FAILED);
        }
        thread::sleep(Duration::from_millis(10));
    }
    let text = format!("{error:#}");
    eprint_line(&match own_rank() {
        Some(rank) => format!("error: rank {rank}: {}", text.strip_prefix(&of_rank(rank)).unwrap_or(&text)),
        None => format!("error: {text}"),
    });
    ExitCode::from(match consequence {
        true => OTHER_RANK_FAILED,
        false if halves_batch(&error) => BATCH_TOO_LARGE,
        false => FAILED,
    })
}

/// Beginning of the text of a failure that the rank has reported to all.
pub(crate) fn of_rank(rank: usize) -> String {
    format!("rank {rank} failed: ")
}

/// Whether an error of rank `own` is only a consequence of another rank's failure.
pub(crate) fn is_consequence(error: &anyhow::Error, own: Option<usize>) -> bool {
    let follows = |error: &Error| match error.cause() {
        Error::PeerLost { .. } => true,
        // That rank reports the error.
        Error::Remote { rank, .. } => own.is_some_and(|own| own != *rank),
        // All ranks fail with the same error; rank 0 reports it.
        Error::SettingsDiffer { .. }
        | Error::EmptyDataset { .. }
        | Error::NotTrainable
        | Error::Diverged { .. }
        | Error::NonFinite { .. }
        | Error::LossScale { .. } => own.is_some_and(|own| own != 0),
        _ => false,
    };
    error.chain().filter_map(|cause| cause.downcast_ref()).any(follows)
}
