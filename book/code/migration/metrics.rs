//! Coming from PyTorch: a metric over the samples of all ranks.

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::tensor::Device;
use burn_ddp::loader::{DistributedLoader, ShardedLoader};
use burn_ddp::{Context, ContextArgs, ProcessGroup, ReduceOp};
use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
}

/// Accuracy that is updated with batches.
#[derive(Default)]
struct Accuracy {
    correct: f64,
    samples: f64,
}

impl Accuracy {
    fn update(&mut self, answers: &[i32], classes: &[i32]) {
        self.correct += answers
            .iter()
            .zip(classes)
            .filter(|(answer, class)| answer == class)
            .count() as f64;
        self.samples += classes.len() as f64;
    }

    /// Computes the mean of the ranks' accuracies.
    fn mean_of_ranks(&self, group: &ProcessGroup) -> anyhow::Result<f64> {
        let mut mean = [self.correct / self.samples];
        group.all_reduce(&mut mean, ReduceOp::Mean)?;
        Ok(mean[0])
    }

    /// Computes the accuracy over the samples of all ranks.
    fn of_all_samples(&self, group: &ProcessGroup) -> anyhow::Result<f64> {
        let mut sums = [self.correct, self.samples];
        group.all_reduce(&mut sums, ReduceOp::Sum)?;
        Ok(sums[0] / sums[1])
    }
}

/// Keeps classes as they are.
struct Keep;
impl Batcher<i32, Vec<i32>> for Keep {
    fn batch(&self, classes: Vec<i32>, _: &Device) -> Vec<i32> {
        classes
    }
}

fn evaluate(context: &Context) -> anyhow::Result<()> {
    let classes = InMemDataset::new((0..101).map(|index| index % 10).collect());
    let loader =
        ShardedLoader::builder(classes, Keep).batch_size(16).build(context.world());
    let mut accuracy = Accuracy::default();
    for batch in loader.epoch(1, 0, context.device()) {
        let batch = batch?;
        let classes = &batch.item[..batch.samples]; // without padding
        let answers = vec![0; classes.len()]; // of a model that always answers 0
        accuracy.update(&answers, classes);
    }
    let mean = accuracy.mean_of_ranks(context.group())?;
    let exact = accuracy.of_all_samples(context.group())?;
    context.print(&format!("mean of ranks {mean:.6}  all samples {exact:.6}"));
    Ok(())
}

fn main() -> ExitCode {
    burn_ddp::launch_with(&Args::parse().context, evaluate)
}
