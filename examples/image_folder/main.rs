//! Trains a ResNet on pictures in one folder per class, with data parallelism on the devices of this machine.
//!
//! ```text
//! cargo run --example image_folder -- shapes shapes                # draws a small data set
//! cargo run --example image_folder -- --data shapes                # DIR/CLASS/*.png, or DIR/{train,val}/CLASS/*
//! cargo run --example image_folder -- --data shapes --mode single  # one device, one process
//! cargo run --example image_folder -- --data OTHER --init-from runs/… --no-strict    # transfer
//! cargo run --example image_folder -- --data DIR --network resnet18 --weights resnet18.pth    # fine-tune torchvision's
//! cargo run --example image_folder -- export runs/… resnet.safetensors    # weights for PyTorch
//! ```

use burn_ddp::{config::config_file, process::exit, run::ExportArgs};
use clap::{Parser, Subcommand};
use image_folder::{
    shapes::{self, ShapesArgs},
    train::{self, ImageArgs},
};
use std::process::ExitCode;

burn_ddp::global_allocator!();

/// Train a classifier of pictures in one folder per class
#[derive(Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    after_help = "These are the flags to begin with; --help lists all.",
    after_long_help = ""
)]
struct Cli {
    #[command(flatten)]
    train: ImageArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Export weights for other programs
    Export(ExportArgs),
    /// Draw a small data set of shapes
    Shapes(ShapesArgs),
}

fn main() -> ExitCode {
    exit::report(config_file::parse::<Cli>(None).and_then(|cli| match cli.command {
        Some(Command::Export(args)) => args.run(train::open),
        Some(Command::Shapes(args)) => shapes::run(&args),
        None => train::run(&cli.train),
    }))
}
