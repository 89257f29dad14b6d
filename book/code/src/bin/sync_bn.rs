//! Course, chapter "BatchNorm across ranks": the statistics of a batch that is divided over ranks.

use burn::module::Module;
use burn::tensor::{Tensor, TensorData};
use burn_ddp::{Context, ContextArgs};
use clap::Parser;
use std::process::ExitCode;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
}

// ANCHOR: program
use burn_ddp::sync_batch_norm::{
    SyncBatchNorm as BatchNorm, SyncBatchNormConfig as BatchNormConfig,
    convert_sync_batch_norm,
};

#[derive(Module, Debug)]
struct Net {
    bn: BatchNorm,
}

/// Normalises this rank's part of the batch 0, 1, … 7 and prints the statistics.
fn normalise(context: &Context, net: &Net, title: &str) -> anyhow::Result<()> {
    let part = 8 / context.world_size();
    let values: Vec<f32> =
        (0..part).map(|i| (context.rank() * part + i) as f32).collect();
    let batch = Tensor::<2>::from_data(
        TensorData::new(values, [part, 1]),
        context.device(),
    );
    let output = net.bn.forward(batch).into_data().try_into_vec::<f32>()?;
    // With momentum 1, the running statistics are those of the last batch.
    let mean = net.bn.norm.running_mean.value_sync().into_scalar::<f32>();
    let variance = net.bn.norm.running_var.value_sync().into_scalar::<f32>();
    println!(
        "rank {}, {title}: mean {mean:.2}, variance {variance:.2}, output {output:.2?}",
        context.rank()
    );
    Ok(())
}

fn main() -> ExitCode {
    burn_ddp::launch_with(&Args::parse().context, |context| {
        let config = BatchNormConfig::new(1).with_momentum(1.0);
        let net = context.init_module(7, |device| Net { bn: config.init(device) });
        normalise(context, &net, "own samples")?;
        let net = convert_sync_batch_norm(net, context.group())?;
        normalise(context, &net, "all samples")
    })
}
// ANCHOR_END: program
