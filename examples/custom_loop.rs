//! One training loop for one device, several devices of a process (DP), and a process per device (DDP).
//!
//!     cargo run --example custom_loop                                            # DDP: a process per GPU, or two
//!     cargo run --example custom_loop -- --mode single                           # one device
//!     cargo run --example custom_loop -- --mode dp --device-ids cpu:0,cpu:1      # DP on two devices

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn_ddp::loader::{DistributedLoader, ShardedLoader};
use burn_ddp::{Context, ContextArgs, DataParallel, DistributedDataParallel, ParallelModule};
use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
}

/// Batches two inputs and the target into a tensor `[batch, 3]`.
struct Stack;
impl Batcher<[f32; 3], Tensor<2>> for Stack {
    fn batch(&self, samples: Vec<[f32; 3]>, device: &Device) -> Tensor<2> {
        Tensor::from_data(TensorData::new(samples.concat(), [samples.len(), 3]), device)
    }
}

// ANCHOR: modes
fn train(context: &Context, mut model: ParallelModule<Linear>) -> anyhow::Result<()> {
    let inputs = (0..500u16).map(|i| f32::from(i) / 250.0 - 1.0);
    let samples = InMemDataset::new(inputs.map(|x| [x, x * x, 1.0 + 2.0 * x - x * x]).collect());
    let loader = ShardedLoader::builder(samples, Stack).batch_size(48 / context.world_size()).shuffle(7);
    let loader = loader.num_workers(1).build(context.world());
    let mut optimizer = SgdConfig::new().init();
    for epoch in 1..=10 {
        let mut sum = 0.0;
        for batch in loader.epoch(epoch, 0, context.device()) {
            let (loss, gradients) = model.backward(batch?, |net, samples| {
                let (x, y) = (samples.clone().narrow(1, 0, 2), samples.narrow(1, 2, 1));
                (net.forward(x) - y).powi_scalar(2).mean()
            })?;
            model.step(&mut optimizer, 0.2, gradients)?;
            sum += loss.sum()?;
        }
        context.log(&format!("epoch {epoch}  train loss"), sum / 500.0)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    burn_ddp::launch_with(&Args::parse().context, |context| {
        let net = context.init_module(7, |device| LinearConfig::new(2, 1).init(device));
        match &context.devices()?[..] {
            [_] => train(context, DistributedDataParallel::new(net, context.group())?.into()),
            devices => train(context, DataParallel::new(net, devices)?.into()),
        }
    })
}
// ANCHOR_END: modes
