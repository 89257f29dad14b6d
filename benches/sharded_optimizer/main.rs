//! Memory and step time of DDP with a whole and with a sharded optimizer, on a network of 102 million parameters.
//!
//! ```text
//! cargo run --example sharded_optimizer -- --device cpu --nproc-per-node 4 --shard-optimizer
//! ```

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Distribution, Tensor, activation::relu};
use burn_ddp::{
    Context, ContextArgs, DistributedDataParallel, StepOptions, gradient::ReducerOptions,
    loader::ShardedBatch, process::timing::median,
};
use clap::Parser;
use serde_json::json;
use std::{process::ExitCode, time::Instant};

burn_ddp::global_allocator!();

/// Measure a step with AdamW of a network of linear layers
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
    /// Divide the optimizer's state over the ranks
    #[arg(long)]
    shard_optimizer: bool,
    #[arg(long, default_value_t = 16)]
    layers: usize,
    #[arg(long, default_value_t = 2528)]
    width: usize,
    /// Samples per rank
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Measured steps
    #[arg(long, default_value_t = 10)]
    steps: usize,
}

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

impl Net {
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let y = self.layers.iter().fold(x.clone(), |y, layer| relu(layer.forward(y)));
        (y - x).powi_scalar(2).mean()
    }
}

/// Peak resident memory of this process in bytes.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

fn measure(context: &Context, args: &Args) -> anyhow::Result<()> {
    let (width, batch) = (args.width, args.batch);
    let net = context.init_module(1, |device| {
        let layer = |_| LinearConfig::new(width, width).init(device);
        Net { layers: (0..args.layers).map(layer).collect() }
    });
    let parameters = net.num_params();
    let reducer = ReducerOptions { shard_optimizer: args.shard_optimizer, ..ReducerOptions::default() };
    let options = StepOptions { reducer, ..StepOptions::default() };
    let mut model = DistributedDataParallel::with_options(net, context.group(), options)?;
    let mut optimizer = AdamWConfig::new().init();
    let x = Tensor::<2>::random([batch, width], Distribution::Normal(0.0, 1.0), context.device());
    let mut times = Vec::new();
    for _ in 0..args.steps + 2 {
        context.group().barrier()?;
        let start = Instant::now();
        let mut batch = ShardedBatch::whole(x.clone(), batch);
        batch.global_samples = batch.samples * context.world_size();
        let (_, gradients) = model.backward(batch, Net::loss)?;
        model.step(&mut optimizer, 1e-4, gradients)?;
        context.group().barrier()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let digest = model.synchronize()?;
    let peaks = context.group().all_gather_object(&peak())?;
    let state = optimizer.to_record().into_bytes()?.len();
    let states = context.group().all_gather_object(&state)?;
    if context.is_main() {
        let ms = median(times.split_off(2));
        println!(
            "{}",
            json!({ "ranks": context.world_size(), "sharded": args.shard_optimizer, "parameters": parameters,
                "ms": ms, "state_bytes": states, "peak_bytes": peaks, "digest": digest })
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| measure(context, &args))
}
