//! Coming from PyTorch: training on several devices of one process.

mod shared;

use burn_ddp::DataParallel;
use burn_ddp::loader::{DistributedLoader, ShardedLoader};
use burn_ddp::run::weights;
use burn_ddp::{Context, ContextArgs};
use clap::Parser;
use shared::{Net, Stack, digits, sgd};
use std::{path::PathBuf, process::ExitCode};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
    /// Initial weights: .safetensors, .pt or .bpk
    #[arg(long)]
    weights: Option<PathBuf>,
}

fn train(context: &Context, args: &Args) -> anyhow::Result<()> {
    // The batch size is that of all devices together.
    let loader =
        ShardedLoader::builder(digits(0..1003), Stack).batch_size(64).shuffle(7);
    let loader = loader.build(context.world());
    let mut net = context.init_module(7, |device| Net::new(false, device));
    if let Some(path) = &args.weights {
        let file = weights::load(net, path)?;
        anyhow::ensure!(
            file.mismatches.is_empty(),
            "{}: {:?}",
            path.display(),
            file.mismatches
        );
        net = file.model;
    }
    // The first device holds the parameters and the optimizer's state.
    let mut model = DataParallel::new(net, &context.devices()?)?;
    let mut optimizer = sgd();
    for epoch in 1..=5 {
        let mut sum = 0.0;
        for batch in loader.epoch(epoch, 0, context.device()) {
            let (loss, gradients) = model.backward(batch?, Net::loss)?;
            model.step(&mut optimizer, 0.05, gradients)?;
            sum += loss.sum()?;
        }
        println!("epoch {epoch}  train loss {:.6}", sum / 1003.0);
    }
    context.save(model.module(), "data_parallel.safetensors")
}

fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| train(context, &args))
}
