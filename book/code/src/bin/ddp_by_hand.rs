//! Course, chapter "DDP by hand": the training loop on several ranks.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsParams, SgdConfig, momentum::MomentumConfig};
use burn::tensor::{Tensor, TensorData};
use burn_ddp::{
    Context, ContextArgs, ProcessGroup, ReduceOp, Result, module_state,
};
use clap::Parser;
use course::{DataArgs, Net, accuracy, batch, load_on_ranks, shuffled};
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

// ANCHOR: sum
/// Replaces the gradients of a module by their sums over all ranks.
struct SumOverRanks<'a> {
    group: &'a ProcessGroup,
    gradients: GradientsParams,
    result: Result<()>,
}

impl ModuleVisitor for SumOverRanks<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(gradient) = self.gradients.remove::<D>(param.id) else { return };
        let (shape, device) = (gradient.shape(), gradient.device());
        let Ok(mut values) = gradient.into_data().try_into_vec::<f32>() else {
            return;
        };
        if self.result.is_ok() {
            self.result = self.group.all_reduce(&mut values, ReduceOp::Sum);
        }
        self.gradients.register(
            param.id,
            Tensor::<D>::from_data(TensorData::new(values, shape), &device),
        );
    }
}
// ANCHOR_END: sum

// ANCHOR: train
fn train(context: &Context, args: &Args) -> anyhow::Result<()> {
    let (rank, ranks, device) =
        (context.rank(), context.world_size(), context.device());
    let (train, test) = load_on_ranks(context, &args.data)?;
    device.seed(if args.different_weights { rank as u64 } else { 7 });
    let mut net = Net::new(device);
    let mut optimizer = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new().with_momentum(0.9)))
        .init();
    for epoch in 1..=args.epochs {
        let mut sum = 0.0;
        let order =
            shuffled(train.len(), if args.frozen_epoch { 1 } else { epoch });
        for global_batch in order.chunks(args.batch_size) {
            anyhow::ensure!(
                global_batch.len() >= ranks,
                "a step has fewer samples than ranks"
            );
            let indices: Vec<usize> =
                global_batch.iter().copied().skip(rank).step_by(ranks).collect();
            // The mean over the global batch: this rank's sum, divided by the samples of all ranks.
            let share = indices.len() as f64 / global_batch.len() as f64;
            let loss = net.loss(batch(&train, &indices, device)) * share;
            sum += loss.clone().into_scalar::<f64>() * global_batch.len() as f64;
            let mut gradients = GradientsParams::from_grads(loss.backward(), &net);
            if !args.no_average {
                let mut visitor = SumOverRanks {
                    group: context.group(),
                    gradients,
                    result: Ok(()),
                };
                net.visit(&mut visitor);
                visitor.result?;
                gradients = visitor.gradients;
            }
            net = optimizer.step(args.lr, net, gradients);
        }
        let mut total = [sum];
        context.group().all_reduce(&mut total, ReduceOp::Sum)?;
        context.print(&format!(
            "epoch {epoch}  train loss {:.6}",
            total[0] / train.len() as f64
        ));
        context.print(&format!(
            "test accuracy {:.2} %",
            accuracy(context, &net.valid(), &test)?
        ));
    }
    println!("rank {rank}  parameters {}", &module_state::digest(&net)?[..16]);
    Ok(())
}
// ANCHOR_END: train

// ANCHOR: main
fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| train(context, &args))
}
// ANCHOR_END: main
