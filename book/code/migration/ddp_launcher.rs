//! Coming from PyTorch: one process per device, started by a launcher.

mod shared;

use burn_ddp::DistributedDataParallel;
use burn_ddp::loader::{DistributedLoader, ShardedLoader};
use burn_ddp::{Context, ContextArgs};
use clap::Parser;
use shared::{Net, Stack, digits, sgd};
use std::process::ExitCode;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
}

fn train(context: &Context) -> anyhow::Result<()> {
    // The batch size is that of this rank.
    let loader = ShardedLoader::builder(digits(0..1003), Stack)
        .batch_size(64 / context.world_size())
        .shuffle(7);
    let loader = loader.build(context.world());
    let net = context.init_module(7, |device| Net::new(false, device));
    let mut model = DistributedDataParallel::new(net, context.group())?;
    let mut optimizer = sgd();
    for epoch in 1..=5 {
        let mut sum = 0.0;
        for batch in loader.epoch(epoch, 0, context.device()) {
            let (loss, gradients) = model.backward(batch?, Net::loss)?;
            model.step(&mut optimizer, 0.05, gradients)?;
            sum += loss.sum()?; // over all ranks
        }
        context.print(&format!("epoch {epoch}  train loss {:.6}", sum / 1003.0));
    }
    println!("rank {}  parameters {}", context.rank(), &model.synchronize()?[..16]);
    context.save(model.module(), "ddp.safetensors")
}

fn main() -> ExitCode {
    burn_ddp::launch_with(&Args::parse().context, train)
}
