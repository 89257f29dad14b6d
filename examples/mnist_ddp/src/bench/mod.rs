//! `mnist_ddp bench`: the speed of training the MNIST network.

mod operations;
mod overlap;
mod step;
mod wrapper;

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// Benchmarks of the MNIST network.
#[derive(Subcommand, Clone, Debug)]
pub enum Bench {
    /// Fraction of a slow link's time that backward hides
    Overlap(overlap::Overlap),
    /// Time of a training step by stage and by operation
    Step(step::Step),
    /// Overhead of DDP in a world of one over a plain Burn loop
    Wrapper(wrapper::Wrapper),
}

/// Runs a benchmark and launches its ranks if no launcher has started them.
///
/// # Errors
/// If a rank cannot be started or the benchmark fails.
pub fn run(bench: &Bench) -> Result<ExitCode> {
    match bench {
        Bench::Overlap(bench) => overlap::run(bench),
        Bench::Step(bench) => step::run(bench),
        Bench::Wrapper(bench) => wrapper::run(bench),
    }
}
