//! Trains a character-level GPT with data parallelism on the devices of this machine.
//!
//! ```text
//! cargo run --example char_gpt                                    # on the book of this repository
//! cargo run --example char_gpt -- --text FILE --mode single       # on any UTF-8 text, one device, one process
//! cargo run --example char_gpt -- --text FILE --nproc-per-node 4  # four processes
//! cargo run --example char_gpt -- --generate "The " --model runs/…    # text of a trained model
//! cargo run --example char_gpt -- export runs/… gpt.safetensors   # weights for PyTorch
//! ```

use burn_ddp::{config::config_file, process::exit};
use std::process::ExitCode;

burn_ddp::global_allocator!();

fn main() -> ExitCode {
    exit::report(config_file::parse(None).and_then(|args| char_gpt::train::run(&args)))
}
