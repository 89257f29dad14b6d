//! Trains a character-level GPT with data parallelism on the devices of this machine.
//!
//! ```text
//! cargo run --example char_gpt                                    # on the book of this repository
//! cargo run --example char_gpt -- --text FILE --mode single       # on any UTF-8 text, one device, one process
//! cargo run --example char_gpt -- --text FILE --nproc-per-node 4  # four processes
//! cargo run --example char_gpt -- --generate "The " --model runs/…    # text of a trained model
//! cargo run --example char_gpt -- export runs/… gpt.safetensors   # weights for PyTorch
//! ```

use burn_ddp::{config::config_file, process::exit, run::ExportArgs};
use char_gpt::{
    generate::TrainedGpt,
    train::{self, GptArgs},
};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

burn_ddp::global_allocator!();

/// Train a character-level GPT, or generate text
#[derive(Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    after_help = "These are the flags to begin with; --help lists all.",
    after_long_help = ""
)]
struct Cli {
    #[command(flatten)]
    train: GptArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Export weights for other programs
    Export(ExportArgs),
}

fn main() -> ExitCode {
    exit::report(config_file::parse::<Cli>(None).and_then(|cli| match cli.command {
        Some(Command::Export(args)) => args.run(|from| Ok(TrainedGpt::open(from)?.net)),
        None => train::run(&cli.train),
    }))
}
