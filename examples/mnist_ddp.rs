//! Trains the MNIST network on whatever this machine has, with distributed data parallelism.
//!
//! ```text
//! cargo run --example mnist_ddp                                # one process per GPU, or two on the CPU
//! cargo run --example mnist_ddp -- --mode single               # one device, one process
//! cargo run --example mnist_ddp -- --nproc-per-node 4          # four processes
//! torchrun --nproc-per-node 4 target/debug/examples/mnist_ddp  # the same, started by torchrun
//! ```

use burn_ddp::{cli::Args, config_file, exit, train};
use std::process::ExitCode;

fn main() -> ExitCode {
    exit::report(config_file::parse::<Args>(None).and_then(|args| train::run(&args)))
}
