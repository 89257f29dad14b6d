//! Course, chapter "BatchNorm across ranks": a network whose BatchNorm sees one value per sample.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig, Relu, loss::CrossEntropyLossConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use burn_ddp::loader::{DistributedLoader, ShardedLoader};
use burn_ddp::sync_batch_norm::{
    SyncBatchNorm as BatchNorm, SyncBatchNormConfig as BatchNormConfig,
};
use burn_ddp::{Context, ContextArgs, DistributedDataParallel, StepOptions};
use clap::Parser;
use course::{Batch, DataArgs, batch, load};
use mnist::data::Images;
use std::process::ExitCode;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Compute BatchNorm statistics over all ranks
    #[arg(long)]
    sync_bn: bool,
    /// Samples per rank and step
    #[arg(long, default_value_t = 4)]
    batch_size: usize,
    /// Number of epochs
    #[arg(long, default_value_t = 3)]
    epochs: usize,
    /// Learning rate
    #[arg(long, default_value_t = 0.03)]
    lr: f64,
    /// Seed of the weights and of the order of the images
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

/// A hidden layer with BatchNorm.
#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    norm: BatchNorm,
    output: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Net {
            hidden: LinearConfig::new(28 * 28, 64).init(device),
            norm: BatchNormConfig::new(64).init(device),
            output: LinearConfig::new(64, 10).init(device),
        }
    }

    /// Maps images `[batch, 1, 28, 28]` to logits `[batch, 10]`.
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.norm.forward(self.hidden.forward(images.flatten(1, 3)));
        self.output.forward(Relu::new().forward(x))
    }

    /// Computes the mean loss `[1]` of a batch.
    fn loss(&self, (images, labels): Batch) -> Tensor<1> {
        let logits = self.forward(images);
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, labels)
    }
}

/// Copies images with the given indices to a device.
struct ToDevice(Images);

impl Batcher<usize, Batch> for ToDevice {
    fn batch(&self, indices: Vec<usize>, device: &Device) -> Batch {
        batch(&self.0, &indices, device)
    }
}

// ANCHOR: train
fn train(context: &Context, args: &Args) -> anyhow::Result<()> {
    let (train, test) = load(&args.data, context.is_main())?;
    let indices = InMemDataset::new((0..train.len()).collect());
    let loader = ShardedLoader::builder(indices, ToDevice(train.clone()))
        .batch_size(args.batch_size)
        .shuffle(args.seed)
        .build(context.world());
    let net = context.init_module(args.seed, Net::new);
    // Converts every SyncBatchNorm of the network if `sync_batch_norm` is true.
    let options =
        StepOptions { sync_batch_norm: args.sync_bn, ..StepOptions::default() };
    let mut model =
        DistributedDataParallel::with_options(net, context.group(), options)?;
    let mut optimizer = SgdConfig::new().init();
    for epoch in 1..=args.epochs {
        let mut sum = 0.0;
        for batch in loader.epoch(epoch, 0, context.device()) {
            let (loss, gradients) = model.backward(batch?, Net::loss)?;
            model.step(&mut optimizer, args.lr, gradients)?;
            sum += loss.sum()?;
        }
        context.print(&format!(
            "epoch {epoch}  train loss {:.6}",
            sum / train.len() as f64
        ));
    }
    // Rank 0's running statistics, as in a checkpoint.
    let (images, labels) = batch(
        &test,
        &(0..test.len()).collect::<Vec<_>>(),
        &context.device().clone().inner(),
    );
    let answers =
        model.module().valid().forward(images).argmax(1).squeeze_dim::<1>(1);
    let correct = answers.equal(labels).int().sum().into_scalar::<i64>();
    context.print(&format!(
        "test accuracy {:.2} %",
        100.0 * correct as f64 / test.len() as f64
    ));
    Ok(())
}
// ANCHOR_END: train

fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| train(context, &args))
}
