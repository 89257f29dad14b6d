//! The `burn-ddp` command.

use burn_ddp::{
    bench::{self, Bench},
    check::{self, Check},
    cli::Args,
    config_file,
    console::print_line,
    devices,
    doctor::{self, DoctorArgs},
    exit,
    launch::command::{self, LaunchArgs},
    predict::{self, PredictArgs},
    report::{self, CompareArgs, ReportArgs},
    train,
    weights::{self, WeightsCommand},
};
use clap::{Parser, Subcommand};
use std::{path::PathBuf, process::ExitCode};

/// Data-parallel training for Burn.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train the MNIST network (the same as `cargo run --example mnist_ddp`)
    Train(Box<Args>),
    /// Say which digits are on pictures of yours
    Predict(PredictArgs),
    /// Take a run's weights to other programs
    #[command(subcommand)]
    Weights(WeightsCommand),
    /// Start any program once per rank, as torchrun does
    Launch(Box<LaunchArgs>),
    /// Check this machine, and the way to others
    Doctor(DoctorArgs),
    /// Measure this machine
    #[command(subcommand)]
    Bench(Bench),
    /// Check that devices compute and communicate rightly
    #[command(subcommand)]
    Check(Check),
    /// List what this machine has to compute on, and what this program could use
    Devices,
    /// Write a run's report.html and curves anew, also of a run that goes on or was killed
    Report(ReportArgs),
    /// Overlay the curves of several runs in one page
    Compare(CompareArgs),
    /// Say which rank did what differently, from the flight records of a failed job
    Explain {
        /// The records, one a rank
        #[arg(required = true, value_name = "FILE")]
        records: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    exit::report(config_file::parse::<Cli>(Some("train")).and_then(|cli| run(cli.command)))
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Train(args) => train::run(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Weights(command) => weights::run(&command),
        Command::Launch(args) => command::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(bench) => bench::run(&bench),
        Command::Check(check) => check::run(&check),
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
