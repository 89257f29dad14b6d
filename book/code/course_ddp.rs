//! Course, chapter "DDP by hand": a training loop that averages gradients with all-reduce.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Tensor, TensorData};
use burn_ddp::{Context, ContextArgs};
use clap::Parser;
use collective::{ProcessGroup, ReduceOp, module_state, sampler::DistributedSampler};
use std::process::ExitCode;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
    /// Leave out the all-reduce of the gradients
    #[arg(long)]
    no_average: bool,
    /// Draw different initial weights on every rank
    #[arg(long)]
    different_weights: bool,
    /// Use the order of epoch 1 in every epoch, as with a forgotten `set_epoch`
    #[arg(long)]
    frozen_epoch: bool,
}

/// Samples of all ranks per step.
const BATCH: usize = 48;

// ANCHOR: average
/// Replaces the gradients of a module by their sums over all ranks.
struct SumOverRanks<'a> {
    group: &'a ProcessGroup,
    gradients: GradientsParams,
    result: collective::Result<()>,
}

impl ModuleVisitor for SumOverRanks<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.remove::<D>(param.id) else { return };
        let (shape, device) = (gradient.shape(), gradient.device());
        let Ok(mut values) = gradient.into_data().try_into_vec::<f32>() else { return };
        if self.result.is_ok() {
            self.result = self.group.all_reduce(&mut values, ReduceOp::Sum);
        }
        self.gradients.register(param.id, Tensor::<D>::from_data(TensorData::new(values, shape), &device));
    }
}
// ANCHOR_END: average

/// Inputs `x`, `x²` and the target of every sample.
fn samples() -> Vec<[f32; 3]> {
    let inputs = (0..500u16).map(|i| f32::from(i) / 250.0 - 1.0);
    inputs.map(|x| [x, x * x, 1.0 + 2.0 * x - x * x]).collect()
}

// ANCHOR: train
fn train(context: &Context, args: &Args) -> anyhow::Result<()> {
    let (samples, group, device) = (samples(), context.group(), context.device());
    let seed = if args.different_weights { context.rank() as u64 } else { 7 };
    let mut net = context.init_module(seed, |device| LinearConfig::new(2, 1).init(device));
    let mut optimizer = SgdConfig::new().init();
    let sampler = DistributedSampler::new(samples.len(), context.world(), Some(7));
    let batch_size = BATCH / context.world_size();
    for epoch in 1..=10 {
        let mut sum = 0.0;
        let order = if args.frozen_epoch { 1 } else { epoch };
        for (step, indices) in sampler.batches(order, batch_size).iter().enumerate() {
            let mine: Vec<f32> = indices.iter().flat_map(|index| samples[*index]).collect();
            let batch = Tensor::<2>::from_data(TensorData::new(mine, [indices.len(), 3]), device);
            let loss = squared_errors(&net, batch);
            sum += loss.clone().into_scalar::<f32>();
            // The mean over the global batch: this rank's sum, divided by the samples of all ranks.
            let mean = loss / sampler.global_batch(0, step, batch_size) as f32;
            let mut gradients = GradientsParams::from_grads(mean.backward(), &net);
            if !args.no_average {
                let mut visitor = SumOverRanks { group, gradients, result: Ok(()) };
                net.visit(&mut visitor);
                visitor.result?;
                gradients = visitor.gradients;
            }
            net = optimizer.step(0.2, net, gradients);
        }
        let ranks = context.world_size() as f64;
        context.log(&format!("epoch {epoch}  train loss"), f64::from(sum) * ranks / samples.len() as f64)?;
    }
    println!("rank {}  parameters {}", context.rank(), &module_state::digest(&net)?[..16]);
    Ok(())
}
// ANCHOR_END: train

/// Sum of the squared errors of a batch `[samples, 3]`.
fn squared_errors(net: &Linear, batch: Tensor<2>) -> Tensor<1> {
    let (x, y) = (batch.clone().narrow(1, 0, 2), batch.narrow(1, 2, 1));
    (net.forward(x) - y).powi_scalar(2).sum()
}

fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| train(context, &args))
}
