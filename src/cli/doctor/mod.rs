//! `burn-ddp doctor`: checks of this machine and its network, with advice for each problem.

mod libraries;
mod machine;
mod network;

use crate::process::console::print_line;
use anyhow::Result;
use clap::Parser;
use std::{fmt, process::ExitCode};

/// Diagnose this machine and its network for training.
///
/// Each line is marked ok, note (something optional is missing) or FAIL, with advice after an arrow. The exit
/// code is 1 if a check fails.
#[derive(Parser, Clone, Debug)]
pub struct DoctorArgs {
    /// Measure the connection to `burn-ddp doctor --listen` on another machine; repeatable
    #[arg(long, value_name = "HOST:PORT")]
    pub peer: Vec<String>,
    /// Serve `doctor --peer` of other machines at this address until Ctrl-C
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "peer")]
    pub listen: Option<String>,
    /// Delete the cache of compiled CUDA kernels and tuning results
    #[cfg(feature = "cuda")]
    #[arg(long, conflicts_with_all = ["peer", "listen"])]
    pub clear_kernel_cache: bool,
    /// Time limit of a connection in seconds
    #[arg(long, default_value_t = 10.0, value_name = "S", value_parser = crate::context::values::seconds)]
    pub timeout: f64,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    name: &'static str,
    /// Measured or detected value.
    found: String,
    verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// Training works without it; the text says how to enable it.
    Note(String),
    /// Training fails or is very slow; the text says how to repair it.
    Fail(String),
}

impl Finding {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Finding { name, found: found.into(), verdict: Verdict::Ok }
    }

    fn note(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { name, found: found.into(), verdict: Verdict::Note(advice.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { name, found: found.into(), verdict: Verdict::Fail(advice.into()) }
    }

    fn note_if(self, low: bool, advice: impl Into<String>) -> Self {
        if low { Self::note(self.name, self.found, advice) } else { self }
    }

    fn fail_if(self, low: bool, advice: impl Into<String>) -> Self {
        if low { Self::fail(self.name, self.found, advice) } else { self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { name, found, verdict } = self;
        match verdict {
            Verdict::Ok => write!(f, "ok    {name:<14}{found}"),
            Verdict::Note(advice) => write!(f, "note  {name:<14}{found} → {advice}"),
            Verdict::Fail(advice) => write!(f, "FAIL  {name:<14}{found} → {advice}"),
        }
    }
}

/// Runs all checks and prints one line per result.
///
/// # Errors
/// If the address of `--listen` cannot be bound, or the kernel cache cannot be deleted.
pub fn run(args: &DoctorArgs) -> Result<ExitCode> {
    if let Some(address) = &args.listen {
        network::listen(address)?;
        return Ok(ExitCode::SUCCESS);
    }
    #[cfg(feature = "cuda")]
    if args.clear_kernel_cache {
        libraries::clear_kernel_cache()?;
        return Ok(ExitCode::SUCCESS);
    }
    let (mut failed, mut printed) = (false, Ok(()));
    let mut report = |finding: Finding| {
        failed |= matches!(finding.verdict, Verdict::Fail(_));
        let line = print_line(&finding.to_string());
        if printed.is_ok() {
            printed = line;
        }
    };
    machine::check(&mut report);
    libraries::check(&mut report);
    #[cfg(feature = "cuda")]
    report(libraries::kernel_cache());
    report(network::loopback());
    for peer in &args.peer {
        network::peer(peer, args.timeout, &mut report);
    }
    printed?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
