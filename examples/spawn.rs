//! Runs a function on every rank of a world, like `torch.multiprocessing.spawn`.
//!
//! ```text
//! cargo run --example spawn                                   # two processes
//! cargo run --example spawn -- 4                              # four
//! burn-ddp launch --nproc-per-node 3 -- target/debug/examples/spawn   # a launcher decides
//! ```

use burn_ddp::{
    InitMethod, Options, ProcessGroup, ReduceOp, context::values::positive, launch::spawn, process::exit,
};
use clap::Parser;
use std::process::ExitCode;

/// Adds up the ranks' numbers.
#[derive(Parser)]
struct Args {
    /// Processes to start, unless a launcher has started them
    #[arg(default_value_t = 2, value_parser = positive)]
    processes: usize,
}

fn main() -> ExitCode {
    exit::report(spawn(Args::parse().processes, |_environment| {
        let group = ProcessGroup::init(InitMethod::Env, Options::default())?;
        let mut sum = [group.rank() as f32 + 1.0];
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        if group.rank() == 0 {
            println!("the sum over {} ranks is {}", group.world_size(), sum[0]);
        }
        group.destroy();
        Ok(ExitCode::SUCCESS)
    }))
}
