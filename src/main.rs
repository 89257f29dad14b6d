//! The `burn-ddp` command.

use burn_ddp::{
    bench::{self, Bench},
    check::{self, Check},
    device::list as devices,
    doctor::{self, DoctorArgs},
    launch_command::{self, LaunchArgs},
    process::{console::print_line, exit},
    run::report::{self, CompareArgs, ReportArgs},
};
use clap::{Parser, Subcommand};
use std::{path::PathBuf, process::ExitCode};

burn_ddp::global_allocator!();

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
    Kernels(burn_ddp::kernels_command::Kernels),
    /// List available devices and backends
    Devices,
    /// Regenerate report.html for a finished, running or interrupted run
    Report(ReportArgs),
    /// Compare the curves of several runs in one page
    Compare(CompareArgs),
    /// Diagnose a failed job from its flight-recorder dumps
    Explain {
        /// Flight-recorder dumps, one per rank
        #[arg(required = true, value_name = "FILE")]
        records: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    exit::report(run(Cli::parse().command))
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Launch(args) => launch_command::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(bench) => bench::run(&bench),
        Command::Check(check) => check::run(&check),
        #[cfg(feature = "cuda")]
        Command::Kernels(kernels) => burn_ddp::kernels_command::run(&kernels),
        Command::Devices => {
            devices::list();
            Ok(ExitCode::SUCCESS)
        }
        Command::Report(args) => {
            print_line(&format!("report        {}", report::write(&args.run)?.display()));
            Ok(ExitCode::SUCCESS)
        }
        Command::Compare(args) => {
            report::compare(&args)?;
            print_line(&format!("comparison    {}", args.output.display()));
            Ok(ExitCode::SUCCESS)
        }
        Command::Explain { records } => {
            print_line(&collective::explain(&records)?);
            Ok(ExitCode::SUCCESS)
        }
    }
}
