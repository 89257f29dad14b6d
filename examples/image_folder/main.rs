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

use burn_ddp::{config::config_file, process::exit};
use std::process::ExitCode;

burn_ddp::global_allocator!();

fn main() -> ExitCode {
    exit::report(config_file::parse(None).and_then(|args| image_folder::train::run(&args)))
}
