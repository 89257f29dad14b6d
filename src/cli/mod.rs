//! The commands of the `burn-ddp` program.

mod bench;
mod check;
mod devices;
mod doctor;
#[cfg(feature = "cuda")]
mod kernels;
mod launch;

use crate::{
    process::{console::print_line, exit},
    run::report::{self, CompareArgs},
};
use bench::Bench;
use check::Check;
use clap::{Parser, Subcommand};
use doctor::DoctorArgs;
use launch::LaunchArgs;
use std::{path::PathBuf, process::ExitCode};

/// Data-parallel training for Burn
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a program once per rank, like torchrun
    Launch(Box<LaunchArgs>),
    /// Diagnose this machine and its network for training
    Doctor(DoctorArgs),
    /// Benchmark collectives on this machine
    #[command(subcommand)]
    Bench(Bench),
    /// Verify collectives on this machine
    #[command(subcommand)]
    Check(Check),
    /// Copy compiled CUDA kernels between machines
    #[cfg(feature = "cuda")]
    #[command(subcommand)]
    Kernels(kernels::Kernels),
    /// List available devices and backends
    Devices,
    /// Regenerate report.html for a finished, running or interrupted run
    Report {
        /// Run folder
        #[arg(value_name = "RUN")]
        run: PathBuf,
    },
    /// Compare the curves of several runs in one page
    Compare(CompareArgs),
    /// Diagnose a failed job from its flight-recorder dumps
    Explain {
        /// Flight-recorder dumps, one per rank
        #[arg(required = true, value_name = "FILE")]
        records: Vec<PathBuf>,
    },
}

/// Runs the command that the command line names, and returns the exit code for `main`.
pub fn main() -> ExitCode {
    exit::report(run(Cli::parse().command))
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Launch(args) => launch::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(bench) => bench::run(&bench),
        Command::Check(check) => check::run(&check),
        #[cfg(feature = "cuda")]
        Command::Kernels(kernels) => kernels::run(&kernels),
        Command::Devices => {
            devices::list()?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Report { run } => print(format!("report        {}", report::write(&run)?.display())),
        Command::Compare(args) => {
            report::compare(&args)?;
            print(format!("comparison    {}", args.output.display()))
        }
        Command::Explain { records } => print(collective::explain(&records)?),
    }
}

fn print(line: String) -> anyhow::Result<ExitCode> {
    print_line(&line)?;
    Ok(ExitCode::SUCCESS)
}
