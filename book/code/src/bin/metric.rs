//! Course, chapter "Metrics that are exact": the accuracy over parts of different sizes.

use burn_ddp::ReduceOp;
use burn_ddp::{Context, ContextArgs};
use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
    /// Join the sums after every batch instead of once
    #[arg(long)]
    every_batch: bool,
}

// ANCHOR: program
/// Number of samples, and of correct answers, in each file of the test set.
const FILES: [(usize, usize); 3] = [(50, 45), (30, 18), (20, 10)];

fn evaluate(context: &Context, every_batch: bool) -> anyhow::Result<()> {
    let (rank, group) = (context.rank(), context.group());
    let (mut correct, mut samples) = (0.0, 0.0);
    // Rank r evaluates the files r, r + world size, …
    for (file_samples, file_correct) in
        FILES.into_iter().skip(rank).step_by(context.world_size())
    {
        let answers: Vec<bool> =
            (0..file_samples).map(|index| index < file_correct).collect();
        for batch in answers.chunks(16) {
            correct += batch.iter().filter(|answer| **answer).count() as f64;
            samples += batch.len() as f64;
            if every_batch {
                group.all_reduce(&mut [correct, samples], ReduceOp::Sum)?;
            }
        }
    }
    println!("rank {rank}: {correct} of {samples}");

    // Wrong: every rank has the same weight, whatever its number of samples.
    context.log("mean of the ranks' accuracies", correct / samples)?;

    // Right: sums are added, and divided last.
    let mut sums = [correct, samples];
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    context.print(&format!("accuracy {:.6}", sums[0] / sums[1]));
    Ok(())
}
// ANCHOR_END: program

fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| {
        evaluate(context, args.every_batch)
    })
}
