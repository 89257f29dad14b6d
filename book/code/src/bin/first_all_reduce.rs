//! Course, chapter "The first all-reduce": the sum of all ranks' numbers, on every rank.

// ANCHOR: program
use burn_ddp::ReduceOp;
use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: burn_ddp::ContextArgs,
    /// Give rank 1 a longer buffer than the other ranks
    #[arg(long)]
    mismatch: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| {
        let length = if args.mismatch && context.rank() == 1 { 3 } else { 2 };
        let mut numbers = vec![context.rank() as f32 + 1.0; length];
        println!("rank {} before: {numbers:?}", context.rank());
        context.group().all_reduce(&mut numbers, ReduceOp::Sum)?;
        println!("rank {} after:  {numbers:?}", context.rank());
        Ok(())
    })
}
// ANCHOR_END: program
