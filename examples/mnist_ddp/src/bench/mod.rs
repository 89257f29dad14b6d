//! `mnist_ddp bench`: training speed of the MNIST network.

mod operations;
mod overlap;
mod step;
mod wrapper;

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// The benchmarks.
#[derive(Subcommand, Clone, Debug)]
pub enum Bench {
    /// Measure the overlap of communication over a slow link with backward
    Overlap(overlap::Overlap),
    /// Measure the time of a training step by stage or operation
    Step(step::Step),
    /// Measure the overhead of DDP with one rank over a plain Burn loop
    Wrapper(wrapper::Wrapper),
}

/// Runs the benchmark and starts the ranks if no launcher did.
///
/// # Errors
/// If a rank cannot be started, or a result is wrong.
pub fn run(bench: &Bench) -> Result<ExitCode> {
    match bench {
        Bench::Overlap(bench) => overlap::run(bench),
        Bench::Step(bench) => step::run(bench),
        Bench::Wrapper(bench) => wrapper::run(bench),
    }
}
