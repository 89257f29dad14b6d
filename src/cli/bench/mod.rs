//! `burn-ddp bench`: benchmarks of collectives with verified results.

mod all_reduce;
#[cfg(feature = "cuda")]
mod device;

use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// The benchmarks.
#[derive(Subcommand, Clone, Debug)]
pub enum Bench {
    /// Measure all-reduce time by buffer size, like nccl-tests
    AllReduce(all_reduce::AllReduce),
    /// Compare a tensor all-reduce on a GPU with NCCL alone
    #[cfg(feature = "cuda")]
    Device(device::DeviceBench),
}

/// Runs the benchmark and starts the ranks if no launcher did.
///
/// # Errors
/// If the ranks or the device cannot be used, or a collective fails.
pub fn run(bench: &Bench) -> Result<ExitCode> {
    match bench {
        Bench::AllReduce(bench) => all_reduce::run(bench),
        #[cfg(feature = "cuda")]
        Bench::Device(bench) => device::run(bench),
    }
}
