//! Course, chapter "The library instead": the same training with `DistributedDataParallel`, or `DataParallel`.

use burn::data::{
    dataloader::batcher::Batcher,
    dataset::{Dataset, DatasetError},
};
use burn::module::Module;
use burn::optim::{SgdConfig, momentum::MomentumConfig};
use burn::tensor::Device;
use burn_ddp::loader::{DistributedLoader, ShardedLoader};
use burn_ddp::lr::{LrScaling, WarmupLr};
use burn_ddp::{
    Context, ContextArgs, DataParallel, DistributedDataParallel, ParallelModule,
    module_state,
};
use clap::Parser;
use course::{Batch, DataArgs, Net, accuracy, batch, load_on_ranks};
use mnist::data::Images;
use std::process::ExitCode;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Number of epochs
    #[arg(long, default_value_t = 1)]
    epochs: usize,
    /// Samples per step of all ranks together
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Learning rate
    #[arg(long, default_value_t = 0.05)]
    lr: f64,
    /// Multiply the learning rate by the number of ranks
    #[arg(long)]
    scale_lr: bool,
    /// Steps of the learning-rate warm-up
    #[arg(long, default_value_t = 0)]
    warmup_steps: usize,
}

// ANCHOR: data
/// The indices of the images.
struct Indices(usize);

impl Dataset<usize> for Indices {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        Ok(index)
    }

    fn len(&self) -> usize {
        self.0
    }
}

/// Copies images with the given indices to a device.
struct ToDevice(Images);

impl Batcher<usize, Batch> for ToDevice {
    fn batch(&self, indices: Vec<usize>, device: &Device) -> Batch {
        batch(&self.0, &indices, device)
    }
}
// ANCHOR_END: data

// ANCHOR: train
fn train(
    context: &Context,
    args: &Args,
    mut model: ParallelModule<Net>,
) -> anyhow::Result<()> {
    let (rank, ranks, device) =
        (context.rank(), context.world_size(), context.device());
    let (train, test) = load_on_ranks(context, &args.data)?;
    // ANCHOR: loader
    let loader =
        ShardedLoader::builder(Indices(train.len()), ToDevice(train.clone()))
            .batch_size(args.batch_size / ranks)
            .shuffle(7)
            .build(context.world());
    // ANCHOR_END: loader
    let mut optimizer = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new().with_momentum(0.9)))
        .init();
    // ANCHOR: lr
    let scaling = if args.scale_lr { LrScaling::Linear } else { LrScaling::None };
    let lr =
        WarmupLr::new(args.lr, args.lr * scaling.factor(ranks), args.warmup_steps);
    // ANCHOR_END: lr
    let mut step = 0;
    for epoch in 1..=args.epochs {
        let mut sum = 0.0;
        for batch in loader.epoch(epoch, 0, device) {
            let (loss, gradients) = model.backward(batch?, Net::loss)?;
            model.step(&mut optimizer, lr.at(step), gradients)?;
            sum += loss.sum()?;
            step += 1;
        }
        context.print(&format!(
            "epoch {epoch}  train loss {:.6}",
            sum / train.len() as f64
        ));
        context.print(&format!(
            "test accuracy {:.2} %",
            accuracy(context, &model.module().valid(), &test)?
        ));
    }
    println!(
        "rank {rank}  parameters {}",
        &module_state::digest(model.module())?[..16]
    );
    Ok(())
}
// ANCHOR_END: train

// ANCHOR: main
fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| {
        let net = context.init_module(7, Net::new);
        match &context.devices()?[..] {
            [_] => {
                let model = DistributedDataParallel::new(net, context.group())?;
                train(context, &args, model.into())
            }
            devices => {
                train(context, &args, DataParallel::new(net, devices)?.into())
            }
        }
    })
}
// ANCHOR_END: main
