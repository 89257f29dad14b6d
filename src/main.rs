//! The `burn-ddp` command.

use burn_ddp::{cli::Args, exit, train};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

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
}

fn main() -> ExitCode {
    exit::report(match Cli::parse().command {
        Command::Train(args) => train::run(&args),
    })
}
