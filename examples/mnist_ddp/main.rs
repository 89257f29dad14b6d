//! Trains the MNIST network with data parallelism on the devices of this machine.
//!
//! ```text
//! cargo run --example mnist_ddp                                # one process per GPU, or two on the CPU
//! cargo run --example mnist_ddp -- --mode single               # one device, one process
//! cargo run --example mnist_ddp -- --nproc-per-node 4          # four processes
//! cargo run --example mnist_ddp -- predict --model runs/… 3.png    # classify a picture
//! torchrun --nproc-per-node 4 target/debug/examples/mnist_ddp  # ranks started by torchrun
//! ```

use burn_ddp::{config::config_file, process::exit};
use mnist::train::{self, MnistArgs};
use std::process::ExitCode;

burn_ddp::global_allocator!();

fn main() -> ExitCode {
    exit::report(config_file::parse(Some(MnistArgs::RECIPE)).and_then(|args| train::run(&args)))
}
