//! `mnist_bench step`: time of a training step by stage, on one or more ranks.

use crate::{
    Repeated, operations,
    timing::{processor_seconds, timed},
};
use anyhow::{Context, Result};
use burn::optim::GradientsParams;
use burn::tensor::Device;
use burn::train::TrainOutput;
use burn_ddp::{
    Options, ProcessGroup, Transport,
    context::{use_threads, world_args::WorldArgs},
    dp::ParallelStep,
    gradient::{Reducer, ReducerOptions},
    launch,
    loader::{DistributedLoader, ShardedLoader},
    module_state,
    process::{console::print_line, timing::median},
    sync_batch_norm::convert_sync_batch_norm,
};
use clap::Args;
use mnist::{
    batch::{ImageBatcher, MnistBatch},
    model::{Net, NetConfig, sgd},
};
use serde::Serialize;
use std::{process::ExitCode, time::Duration};

#[derive(Args, Clone, Debug)]
pub struct Step {
    /// Add BatchNorm with statistics per rank
    #[arg(long)]
    batch_norm: bool,
    /// Add BatchNorm with statistics over all ranks
    #[arg(long, conflicts_with = "batch_norm")]
    sync_bn: bool,
    /// Samples per rank and step
    #[arg(long, default_value_t = 64, value_parser = burn_ddp::context::values::positive)]
    batch: usize,
    /// Compute threads per rank
    #[arg(long, default_value_t = 1, value_parser = burn_ddp::context::values::positive)]
    threads: usize,
    /// Number of ranks on this machine
    #[arg(long, default_value_t = 1, value_parser = burn_ddp::context::values::positive)]
    ranks: usize,
    /// Measured steps, after ten warm-up steps
    #[arg(long, default_value_t = 60, value_parser = burn_ddp::context::values::positive)]
    steps: usize,
    /// Disable gradient synchronisation
    #[arg(long)]
    no_sync: bool,
    /// Measure each operation, with burn-ddp's kernels and with Burn's
    #[arg(long, conflicts_with = "ranks")]
    ops: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    world: WorldArgs,
}

const RATE: f64 = 0.01;
const WARM: usize = 10;

/// Medians over steps of the slowest rank's times.
#[derive(Serialize)]
struct Report {
    ranks: usize,
    threads: usize,
    batch: usize,
    batch_norm: bool,
    sync_bn: bool,
    images_per_second: f64,
    /// Images per second of one rank's processor time, which is less sensitive to other load.
    images_per_cpu_second: f64,
    step_ms: f64,
    data_ms: f64,
    forward_ms: f64,
    backward_ms: f64,
    synchronise_ms: f64,
    optimizer_ms: f64,
}

pub fn run(bench: &Step) -> Result<ExitCode> {
    let group = match bench.world.environment()? {
        None if bench.ranks > 1 => return launch::ranks(bench.ranks, "bench"),
        None => ProcessGroup::solo(),
        Some(environment) => bench.world.connect(environment, Transport::Auto, Options::default())?,
    };
    use_threads(bench.threads)?;
    let report = measure(bench, &group)?;
    if group.rank() == 0 {
        say(bench, &report)?;
    }
    if bench.ops {
        operations::measure(bench.batch, bench.json)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn say(bench: &Step, report: &Report) -> Result<()> {
    if bench.json {
        return print_line(&serde_json::to_string(report)?);
    }
    let Report { ranks, threads, batch, .. } = report;
    print_line(&format!("# {ranks} rank(s) x {threads} thread(s), batch {batch} per rank, medians in ms"))?;
    print_line(&format!("{:>12.0} images/s", report.images_per_second))?;
    print_line(&format!(
        "{:>12.0} images per second of a rank's processor time",
        report.images_per_cpu_second
    ))?;
    let stages = [
        ("step", report.step_ms),
        ("data", report.data_ms),
        ("forward", report.forward_ms),
        ("backward", report.backward_ms),
        ("synchronise", report.synchronise_ms),
        ("optimizer", report.optimizer_ms),
    ];
    for (stage, time) in stages {
        print_line(&format!("{time:>12.2} {stage}"))?;
    }
    Ok(())
}

/// Measures the trainer's steps by stage.
fn measure(bench: &Step, group: &ProcessGroup) -> Result<Report> {
    let device = Device::flex().autodiff();
    let batch_norm = bench.batch_norm || bench.sync_bn;
    let net = NetConfig { batch_norm, dropout: [0.25, 0.5], ..NetConfig::default() }.init(&device);
    let net = if bench.sync_bn { convert_sync_batch_norm(net, group)? } else { net };
    let mut net = module_state::broadcast(net, group, 0)?;
    let mut optimizer = sgd(0.9, false, 0.0);
    let mut reducer = Reducer::new(&net, group, ReducerOptions::default())?;
    let world = group.world();
    let samples = bench.batch * world.size * (bench.steps + WARM);
    let loader = ShardedLoader::builder(Repeated::new(samples)?, ImageBatcher::default())
        .batch_size(bench.batch)
        .shuffle(1)
        .build(world);
    let mut shares = loader.epoch(1, 0, &device);

    let mut times: [Vec<f64>; 7] = Default::default();
    group.barrier()?;
    for number in 0..bench.steps + WARM {
        let processor = processor_seconds();
        let (stages, whole) = timed(|| {
            let (share, data) = timed(|| {
                shares.next().context("the data set has too few samples")?.map_err(anyhow::Error::from)
            })?;
            let all = share.global_samples;
            let mut step = if bench.no_sync { None } else { Some(reducer.step(share.samples, all)) };
            let (grads, forward, back) = match &mut step {
                Some(step) => {
                    let watched = step.watch(&net);
                    step.scope(|| forward_backward(&watched, share.item))?
                }
                None => forward_backward(&net, share.item)?,
            };
            let (grads, synchronise) = timed(|| match step {
                Some(step) => Ok(step.finish(grads, &net, &mut vec![])?),
                None => Ok(grads),
            })?;
            let ((), optimize) = timed(|| {
                net = optimizer.step(RATE, net.clone(), grads);
                Ok(())
            })?;
            Ok([data, forward, back, synchronise, optimize].map(|time| time.as_secs_f64()))
        })?;
        if number >= WARM {
            times[0].push(whole.as_secs_f64());
            times[6].push(processor_seconds() - processor);
            times[1..6].iter_mut().zip(stages).for_each(|(times, time)| times.push(time));
        }
    }
    group.barrier()?;
    let mut medians = times.map(|times| 1e3 * median(times));
    group.all_reduce(&mut medians, burn_ddp::ReduceOp::Max)?;
    let [step_ms, data_ms, forward_ms, backward_ms, synchronise_ms, optimizer_ms, processor_ms] = medians;
    Ok(Report {
        ranks: world.size,
        threads: bench.threads,
        batch: bench.batch,
        batch_norm,
        sync_bn: bench.sync_bn,
        images_per_second: 1e3 * (bench.batch * world.size) as f64 / step_ms,
        images_per_cpu_second: 1e3 * bench.batch as f64 / processor_ms,
        step_ms,
        data_ms,
        forward_ms,
        backward_ms,
        synchronise_ms,
        optimizer_ms,
    })
}

/// Computes gradients; also returns the times of forward and backward.
fn forward_backward(net: &Net, batch: MnistBatch) -> Result<(GradientsParams, Duration, Duration)> {
    let (loss, forward) = timed(|| Ok(net.criterion(net.forward_part(batch.clone()), batch).0))?;
    let (grads, back) = timed(|| Ok(TrainOutput::new(net, loss.backward(), ()).grads))?;
    Ok((grads, forward, back))
}
