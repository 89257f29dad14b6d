//! Converts device failures inside Burn and CubeCL into one error.
//!
//! CubeCL catches panics on its threads, drops the task and logs it. The log is the only trace, because
//! CubeCL also catches harmless panics, such as those of kernels that tuning rejects. Burn panics when a tensor is
//! read that was never computed.
//!
//! If a kernel cannot be compiled, loaded or launched, CubeCL marks what it would have written, and all that is computed
//! from it, so that the read of a loss fails. The marks have gaps: CubeCL 0.11.3 takes the output of a kernel with atomic
//! additions for an input, and memory as written after any launch that writes a part of it. Such a failure is therefore
//! an error wherever it is logged, except while CubeCL measures kernels, which leaves the failing one out.

use crate::process::auto_batch::BatchTooLarge;
use anyhow::Result;
use collective::{
    Error,
    device_error::{cause_of_panic, panic_text},
    health,
};
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::{
    backtrace::Backtrace,
    panic::{self, AssertUnwindSafe},
    sync::{
        Once, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

/// CubeCL's module that runs and drops tasks.
const SOURCE: &str = "cubecl_common::device";
/// CubeCL's module that logs the error of a kernel.
const KERNEL: &str = "cubecl_runtime::logging::server";
/// Parts of the names of CubeCL's functions that measure kernels.
const MEASURING: [&str; 2] = ["tune::tune_benchmark", "tune::schedule"];
/// Prefix of its message about a dropped task.
const DROPPED: &str = "CallError(task panicked on device runner thread";
/// Parts of every panic message of Burn about a failed device.
const REPORT: [&str; 2] = ["Caused by:", "acktrace"];

/// Target of the record by which [`listen`] finds out whether a logger calls [`inspect`].
const PROBE: &str = "burn_ddp::device::faults::probe";

/// Calls of [`run`] in progress.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// Kind of the watched devices, such as `cuda`.
static KIND: OnceLock<&'static str> = OnceLock::new();

/// Whether the program's logger passes its records to [`inspect`].
static INSPECTED: AtomicBool = AtomicBool::new(false);

/// Prepares for failures of CubeCL's devices of one kind.
///
/// Burn's panics about a failed device are not printed during [`run`]. All others reach the earlier panic hook.
pub fn watch(kind: &'static str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = KIND.set(kind);
        let earlier = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // `run` reports a failed device in one line.
            let reported =
                RUNNING.load(Ordering::Relaxed) > 0 && panic_text(info.payload()).is_some_and(is_report);
            if !(reported && is_quiet()) {
                earlier(info);
            }
        }));
    });
}

/// Reads CubeCL's log from now on, if a GPU is in use.
///
/// It is called at the first use of the device, so that the program may install a logger until then. If that
/// logger does not call [`inspect`], `warn` is called once.
pub(crate) fn listen(warn: impl FnOnce(&str)) {
    static ONCE: Once = Once::new();
    if KIND.get().is_none() {
        return;
    }
    ONCE.call_once(|| {
        if log::set_logger(&Inspector).is_ok() {
            log::set_max_level(LevelFilter::Warn);
            return;
        }
        let probe = Record::builder().level(Level::Trace).target(PROBE).build();
        log::logger().log(&probe);
        if !INSPECTED.load(Ordering::Relaxed) || log::max_level() < LevelFilter::Warn {
            warn(
                "the program's logger hides failures of the GPU; pass its records, from level warn, to burn_ddp::device::faults::inspect",
            );
        }
    });
}

/// Looks for device failures in a record of CubeCL's log; training then ends with an error at the next step.
///
/// A program with a logger of its own calls this first in [`Log::log`], for every record from level
/// [`Level::Warn`]. Without a logger, burn-ddp installs one that does only this.
///
/// ```
/// use log::{LevelFilter, Log, Metadata, Record};
///
/// struct Logger;
/// impl Log for Logger {
///     fn enabled(&self, metadata: &Metadata<'_>) -> bool {
///         metadata.level() <= log::Level::Warn
///     }
///     fn log(&self, record: &Record<'_>) {
///         burn_ddp::device::faults::inspect(record);
///         if self.enabled(record.metadata()) {
///             eprintln!("{} {}", record.level(), record.args());
///         }
///     }
///     fn flush(&self) {}
/// }
///
/// log::set_logger(&Logger)?;
/// log::set_max_level(LevelFilter::Warn);
/// # Ok::<(), log::SetLoggerError>(())
/// ```
pub fn inspect(record: &Record<'_>) {
    if record.target() == PROBE {
        INSPECTED.store(true, Ordering::Relaxed);
    }
    if !is_source(record.metadata()) {
        return;
    }
    let message = record.args().to_string();
    let reason = match record.target().starts_with(KERNEL) {
        true if is_measuring() => return,
        true => cause_of_panic(&message),
        false => match dropped(&message) {
            Some(panic) => {
                format!("work was dropped after a panic in CubeCL ({panic}); results would be wrong")
            }
            None => return,
        },
    };
    health::report(&device(thread::current().name()), &reason);
}

/// Whether CubeCL measures kernels on this thread, or this is unknown because the program has no symbols.
fn is_measuring() -> bool {
    let stack = Backtrace::force_capture().to_string();
    !stack.contains("cubecl") || MEASURING.iter().any(|function| stack.contains(function))
}

/// Whether CubeCL reports device failures in records like this.
fn is_source(metadata: &Metadata<'_>) -> bool {
    metadata.level() <= Level::Warn
        && (metadata.target().starts_with(SOURCE) || metadata.target().starts_with(KERNEL))
}

/// The logger of a program that has none.
struct Inspector;

impl Log for Inspector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_source(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        inspect(record);
    }

    fn flush(&self) {}
}

/// Returns the panic message behind a dropped task.
fn dropped(message: &str) -> Option<String> {
    let panic = message.strip_prefix(DROPPED)?;
    let panic = panic.strip_suffix(')').unwrap_or(panic).trim_start_matches(':');
    Some(cause_of_panic(panic))
}

/// Returns the device of a CubeCL thread from its name, such as `DSD-0-1`.
fn device(thread: Option<&str>) -> String {
    let index = thread.filter(|name| name.starts_with("DS")).and_then(|name| name.rsplit('-').next());
    let kind = KIND.get().copied().unwrap_or("device");
    index.map_or_else(|| kind.into(), |index| format!("{kind}:{index}"))
}

/// Calls `act` and converts a panic of Burn about a failed device into an error.
///
/// # Errors
/// If `act` or the device fails.
pub fn run<T>(device: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
    RUNNING.fetch_add(1, Ordering::Relaxed);
    let result = panic::catch_unwind(AssertUnwindSafe(act));
    RUNNING.fetch_sub(1, Ordering::Relaxed);
    let result = result.unwrap_or_else(|payload| {
        let Some(report) = panic_text(&*payload).filter(|text| is_report(text)) else {
            panic::resume_unwind(payload);
        };
        Err(Error::Device { device: device.into(), reason: cause_of_panic(report) }.into())
    });
    // The cause of dropped work explains more than its consequences.
    match result {
        Err(error) if error.is::<BatchTooLarge>() => Err(error),
        result => health::check().map_err(Into::into).and(result),
    }
}

fn is_report(text: &str) -> bool {
    REPORT.iter().all(|part| text.contains(part))
}

/// Whether backtraces are disabled.
fn is_quiet() -> bool {
    std::env::var_os("RUST_BACKTRACE").is_none_or(|value| value == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dropped_tasks_are_faults() {
        let message =
            "CallError(task panicked on device runner thread: called `Option::unwrap()` on a `None` value)";
        assert_eq!(dropped(message).as_deref(), Some("called `Option::unwrap()` on a `None` value"));
        assert_eq!(dropped("Task failed: CallError(task panicked on device runner thread: x)"), None);
        assert_eq!(dropped("Device runner panicked during shutdown"), None);
    }

    #[test]
    fn devices_are_named_after_their_threads() {
        assert!(device(Some("DSD-0-1")).ends_with(":1"));
        assert!(!device(Some("main")).contains(':'));
    }

    #[test]
    fn a_report_becomes_an_error_and_another_panic_is_resumed() {
        let report = || -> Result<()> { panic!("Failed\nCaused by:\n  status 719\nBacktrace:\nnone") };
        let error = run("cuda:1", report).expect_err("a panic").to_string();
        assert_eq!(error, "device cuda:1: status 719");
        assert!(panic::catch_unwind(|| run("cuda:1", || -> Result<()> { panic!("a defect") })).is_err());
    }
}
