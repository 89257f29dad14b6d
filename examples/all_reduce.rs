//! Collectives without training: numbers, objects and tensors over the ranks of one group.
//!
//! ```text
//! cargo run --example all_reduce             # three processes
//! cargo run --example all_reduce -- 4        # four
//! burn-ddp launch --nproc-per-node 4 -- target/debug/examples/all_reduce    # a launcher decides
//! torchrun --nproc-per-node 4 --no-python target/debug/examples/all_reduce
//! ```

use burn::tensor::{Device, Tensor};
use burn_ddp::{
    InitMethod, Options, ProcessGroup, ReduceOp, context::values::positive, launch::spawn, process::exit,
    tensor,
};
use clap::Parser;
use std::process::ExitCode;

/// Call collectives on numbers, objects and tensors
#[derive(Parser)]
struct Args {
    /// Processes to start, unless a launcher has started them
    #[arg(default_value_t = 3, value_parser = positive)]
    processes: usize,
}

fn main() -> ExitCode {
    exit::report(spawn(Args::parse().processes, |_environment| {
        // ANCHOR: collectives
        let group = ProcessGroup::init(InitMethod::Env, Options::default())?;
        let (rank, size) = (group.rank(), group.world_size());

        let mut numbers = [rank as f32, 1.0];
        group.all_reduce(&mut numbers, ReduceOp::Sum)?;
        let names = group.all_gather_object(&format!("rank {rank}"))?;
        let chosen = group.broadcast_object(&names[rank], size - 1)?;
        // ANCHOR_END: collectives

        let device = Device::flex().autodiff();
        let x = Tensor::<1>::from_data([rank as f32 + 1.0], &device).require_grad();
        let mean = tensor::all_reduce(x.clone() * x.clone(), &group, ReduceOp::Mean)?;
        let gradient = x.grad(&mean.clone().backward());

        if rank == 0 {
            println!("sum {numbers:?} over {names:?}; broadcast from rank {}: {chosen}", size - 1);
            println!(
                "mean of squares {}, gradient on rank 0 {:?}",
                mean.into_scalar::<f32>(),
                gradient.map(|g| g.into_scalar::<f32>())
            );
        }
        group.destroy();
        Ok(ExitCode::SUCCESS)
    }))
}
