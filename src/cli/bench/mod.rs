//! `burn-ddp bench`: benchmarks of collectives with verified results.

mod all_reduce;

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// The benchmarks.
#[derive(Subcommand, Clone, Debug)]
pub enum Bench {
    /// Measure all-reduce time by buffer size, like nccl-tests
    AllReduce(all_reduce::AllReduce),
}

/// Runs the benchmark and starts the ranks if no launcher did.
///
/// # Errors
/// If the ranks cannot be used, or a collective fails.
pub fn run(bench: &Bench) -> Result<ExitCode> {
    match bench {
        Bench::AllReduce(bench) => all_reduce::run(bench),
    }
}
