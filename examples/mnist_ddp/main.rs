//! Trains the MNIST network with data parallelism on the devices of this machine.
//!
//! ```text
//! cargo run --example mnist_ddp                                # one process per GPU, or two on the CPU
//! cargo run --example mnist_ddp -- --mode single               # one device, one process
//! cargo run --example mnist_ddp -- --nproc-per-node 4          # four processes
//! cargo run --example mnist_ddp -- predict --model runs/… 3.png    # classify a picture
//! torchrun --nproc-per-node 4 target/debug/examples/mnist_ddp  # ranks started by torchrun
//! ```

use burn::tensor::Device;
use burn_ddp::{config::config_file, process::exit, run::ExportArgs};
use clap::{Parser, Subcommand};
use mnist::{
    model::Net,
    predict::{self, PredictArgs},
    train::{self, MnistArgs},
};
use std::process::ExitCode;

burn_ddp::global_allocator!();

/// Train the MNIST network on one device, or with data parallelism on several
#[derive(Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    after_help = "These are the flags to begin with; --help lists all.",
    after_long_help = ""
)]
struct Cli {
    #[command(flatten)]
    train: MnistArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Classify images of handwritten digits
    Predict(PredictArgs),
    /// Export weights for other programs
    #[command(subcommand)]
    Weights(WeightsCommand),
}

#[derive(Subcommand)]
enum WeightsCommand {
    /// Export weights as safetensors with PyTorch's key names and layouts
    Export(ExportArgs),
}

fn main() -> ExitCode {
    let cli = config_file::parse::<Cli>(Some(MnistArgs::RECIPE));
    exit::report(cli.and_then(|cli| match cli.command {
        None => train::run(&cli.train),
        Some(Command::Predict(args)) => predict::run(&args),
        Some(Command::Weights(WeightsCommand::Export(args))) => {
            args.run(|from| Net::open(from, &Device::flex()))
        }
    }))
}
