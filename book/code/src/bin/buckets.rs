//! Course, chapter "Hiding communication": the time of a training step over a slow link, by bucket size.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor, activation::relu};
use burn_ddp::gradient::{Bucket, BucketSizes, CommHook, Reducer, ReducerOptions};
use burn_ddp::{
    Context, ContextArgs, ProcessGroup, ReduceOp, Result, module_state,
};
use clap::Parser;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
    /// Bucket sizes in MiB
    #[arg(long, value_delimiter = ',', default_value = "0.25,1,5,25")]
    bucket_mb: Vec<f64>,
    /// First bucket size in MiB [default: that of the other buckets]
    #[arg(long)]
    first_mb: Option<f64>,
    /// Bandwidth of the emulated link in Gbit/s, or 0 for none
    #[arg(long, default_value_t = 2.0)]
    gbit: f64,
    /// Latency of the emulated link in ms
    #[arg(long, default_value_t = 1.0)]
    latency_ms: f64,
    /// Samples of each rank and step
    #[arg(long, default_value_t = 128)]
    batch_size: usize,
    /// Steps of each kind
    #[arg(long, default_value_t = 15)]
    steps: usize,
}

/// 96 layers with 0.25 MiB of gradients each.
#[derive(Module, Debug)]
struct Deep {
    layers: Vec<Linear>,
}

impl Deep {
    fn new(device: &Device) -> Self {
        Self {
            layers: (0..96)
                .map(|_| LinearConfig::new(256, 256).init(device))
                .collect(),
        }
    }

    fn loss(&self, input: Tensor<2>) -> Tensor<1> {
        let output = self
            .layers
            .iter()
            .fold(input, |x, layer| x.clone() + relu(layer.forward(x)) * 0.1);
        output.powi_scalar(2).mean()
    }
}

// ANCHOR: link
/// A slow network: a bucket waits as long as the link would take to send it.
#[derive(Debug)]
struct Link {
    latency: f64,
    seconds_per_byte: f64,
}

impl CommHook for Link {
    fn name(&self) -> &str {
        "link"
    }

    fn reduce(&self, bucket: &mut Bucket<'_>, group: &ProcessGroup) -> Result<()> {
        let bytes = size_of_val(bucket.values()) as f64;
        thread::sleep(Duration::from_secs_f64(
            self.latency + self.seconds_per_byte * bytes,
        ));
        group.all_reduce(bucket.values_mut(), ReduceOp::Sum)
    }
}
// ANCHOR_END: link

/// Seconds of forward and of backward, without synchronisation.
fn compute(model: &Deep, input: &Tensor<2>) -> [f64; 2] {
    let begun = Instant::now();
    let loss = model.loss(input.clone());
    let forward = begun.elapsed();
    let gradients = GradientsParams::from_grads(loss.backward(), model);
    drop(gradients);
    [forward, begun.elapsed() - forward].map(|time| time.as_secs_f64())
}

// ANCHOR: step
/// Seconds of a synchronised step, and the gradients of the mean over all ranks.
fn synchronised(
    model: &Deep,
    input: &Tensor<2>,
    reducer: &mut Reducer,
) -> Result<(f64, GradientsParams)> {
    let begun = Instant::now();
    let samples = input.dims()[0];
    let step = reducer.step(samples, 2 * samples);
    let watched = step.watch(model);
    let loss = watched.loss(input.clone());
    let gradients = GradientsParams::from_grads(loss.backward(), &watched);
    let gradients = step.finish(gradients, model, &mut vec![])?;
    Ok((begun.elapsed().as_secs_f64(), gradients))
}
// ANCHOR_END: step

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    1e3 * times[times.len() / 2]
}

fn measure(context: &Context, args: &Args) -> anyhow::Result<()> {
    let (group, device) = (context.group(), context.device());
    anyhow::ensure!(
        group.world_size() == 2,
        "this program needs two ranks: --nproc-per-node 2"
    );
    let model = context.init_module(7, Deep::new);
    device.seed(context.rank() as u64);
    let input = Tensor::random(
        [args.batch_size, 256],
        Distribution::Normal(0.0, 1.0),
        device,
    );

    let link =
        Link { latency: args.latency_ms / 1e3, seconds_per_byte: 8e-9 / args.gbit };
    let link: Option<Arc<dyn CommHook>> =
        if args.gbit > 0.0 { Some(Arc::new(link)) } else { None };
    let bytes = |mib: f64| (mib * f64::from(1 << 20)) as usize;
    let mut reducers = Vec::new();
    for size in &args.bucket_mb {
        let buckets = BucketSizes {
            first: bytes(args.first_mb.unwrap_or(*size)),
            rest: bytes(*size),
        };
        for overlap in [false, true] {
            let options = ReducerOptions {
                buckets,
                overlap,
                hook: link.clone(),
                ..Default::default()
            };
            reducers.push(Reducer::new(&model, group, options)?);
        }
    }

    let mut times: Vec<Vec<f64>> = vec![Vec::new(); 2 + reducers.len()];
    let mut digests = Vec::new();
    for step in 0..=args.steps {
        group.barrier()?;
        let mut round = compute(&model, &input).to_vec();
        for reducer in &mut reducers {
            group.barrier()?;
            let (time, gradients) = synchronised(&model, &input, reducer)?;
            round.push(time);
            if step == 0 {
                let stepped =
                    SgdConfig::new().init().step(0.1, model.clone(), gradients);
                digests.push(module_state::digest(&stepped)?);
            }
        }
        // The slowest rank determines the time of a step. The first step warms up.
        group.all_reduce(&mut round, ReduceOp::Max)?;
        times
            .iter_mut()
            .zip(round)
            .filter(|_| step > 0)
            .for_each(|(times, time)| times.push(time));
    }
    anyhow::ensure!(
        digests.iter().all(|digest| *digest == digests[0]),
        "the gradients differ"
    );

    let mut medians = times.into_iter().map(median);
    let mut next = || medians.next().unwrap_or(f64::NAN);
    context.print(&format!(
        "forward {:.1} ms, backward {:.1} ms without synchronisation",
        next(),
        next()
    ));
    context.print("bucket MiB  buckets  after backward ms  overlapped ms");
    for (size, reducers) in args.bucket_mb.iter().zip(reducers.chunks(2)) {
        let (count, after, overlapped) = (reducers[0].buckets(), next(), next());
        context.print(&format!(
            "{size:>10}  {count:>7}  {after:>17.1}  {overlapped:>13.1}"
        ));
    }
    context
        .print(&format!("rank 0: all steps gave parameters {}", &digests[0][..16]));
    Ok(())
}

fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| measure(context, &args))
}
