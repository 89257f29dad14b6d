//! Course, chapter "Less traffic, fewer bits": gradient accumulation, 16 bits, and a hook that sends bytes.

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor, TensorData};
use burn_ddp::gradient::{Bucket, CommHook, HalfPrecision, ReducerOptions};
use burn_ddp::loader::{DistributedLoader, ShardedLoader};
use burn_ddp::{
    Context, ContextArgs, DistributedDataParallel, ProcessGroup, Result,
    StepOptions,
};
use clap::{Parser, ValueEnum};
use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
    /// Samples per batch, over all ranks
    #[arg(long, default_value_t = 48)]
    batch_size: usize,
    /// Batches per optimizer step
    #[arg(long, default_value_t = 1)]
    grad_accum_steps: usize,
    /// What is sent for a gradient
    #[arg(long, value_enum, default_value = "none")]
    hook: Hook,
}

#[derive(Clone, Copy, ValueEnum)]
enum Hook {
    None,
    Bf16,
    Byte,
    ByteWithoutFeedback,
}

/// Batches two inputs and the target into a tensor `[batch, 3]`.
struct Stack;
impl Batcher<[f32; 3], Tensor<2>> for Stack {
    fn batch(&self, samples: Vec<[f32; 3]>, device: &Device) -> Tensor<2> {
        Tensor::from_data(
            TensorData::new(samples.concat(), [samples.len(), 3]),
            device,
        )
    }
}

// ANCHOR: hook
/// Sends each gradient as one byte, the nearest multiple of `STEP`.
#[derive(Debug)]
struct OneByte {
    feedback: bool,
    /// What was not sent, for each bucket.
    errors: Mutex<HashMap<usize, Vec<f32>>>,
}

const STEP: f32 = 0.05;

impl CommHook for OneByte {
    fn name(&self) -> &str {
        "byte"
    }

    fn reduce(&self, bucket: &mut Bucket<'_>, group: &ProcessGroup) -> Result<()> {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let error = errors.entry(bucket.index()).or_default();
        error.resize(bucket.values().len(), 0.0);
        let mut message = Vec::new();
        for (gradient, error) in bucket.values().iter().zip(error) {
            let wanted = gradient + *error;
            let steps = (wanted / STEP).round().clamp(-128.0, 127.0);
            message.push((steps + 128.0) as u8);
            *error = if self.feedback { wanted - STEP * steps } else { 0.0 };
        }
        bucket.values_mut().fill(0.0);
        for message in group.all_gather(&message)? {
            let sent = message.iter().map(|byte| STEP * (f32::from(*byte) - 128.0));
            bucket
                .values_mut()
                .iter_mut()
                .zip(sent)
                .for_each(|(sum, sent)| *sum += sent);
        }
        Ok(())
    }
}
// ANCHOR_END: hook

// ANCHOR: options
fn train(context: &Context, args: &Args) -> anyhow::Result<()> {
    let byte = |feedback| Arc::new(OneByte { feedback, errors: Mutex::default() });
    let hook: Option<Arc<dyn CommHook>> = match args.hook {
        Hook::None => None,
        Hook::Bf16 => Some(Arc::new(HalfPrecision::Bf16)),
        Hook::Byte => Some(byte(true)),
        Hook::ByteWithoutFeedback => Some(byte(false)),
    };
    let options = StepOptions {
        grad_accum_steps: args.grad_accum_steps,
        reducer: ReducerOptions { hook, ..ReducerOptions::default() },
        ..StepOptions::default()
    };
    let net = context.init_module(7, |device| LinearConfig::new(2, 1).init(device));
    let mut model: DistributedDataParallel<Linear> =
        DistributedDataParallel::with_options(net, context.group(), options)?;
    // ANCHOR_END: options
    let inputs = (0..500u16).map(|i| f32::from(i) / 250.0 - 1.0);
    let samples = InMemDataset::new(
        inputs.map(|x| [x, x * x, 1.0 + 2.0 * x - x * x]).collect(),
    );
    let loader = ShardedLoader::builder(samples, Stack)
        .batch_size(args.batch_size / context.world_size());
    let loader = loader.shuffle(7).build(context.world());
    let mut optimizer = SgdConfig::new().init();
    // ANCHOR: loop
    for epoch in 1..=10 {
        let mut sum = 0.0;
        for batch in loader.epoch(epoch, 0, context.device()) {
            let (loss, gradients) = model.backward(batch?, squared_error)?;
            model.step(&mut optimizer, 0.2, gradients)?;
            if loss.is_synchronised() {
                sum += loss.sum()?;
            }
        }
        context.log(&format!("epoch {epoch}  train loss"), sum / 500.0)?;
    }
    // ANCHOR_END: loop
    Ok(())
}

/// Mean squared error `[1]` of a batch `[samples, 3]`.
fn squared_error(net: &Linear, batch: Tensor<2>) -> Tensor<1> {
    let (x, y) = (batch.clone().narrow(1, 0, 2), batch.narrow(1, 2, 1));
    (net.forward(x) - y).powi_scalar(2).mean()
}

fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| train(context, &args))
}
