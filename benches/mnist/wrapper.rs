//! `mnist_bench wrapper`: a plain Burn loop compared with `DdpStrategy` on one rank.

use crate::{Repeated, timing::processor_seconds};
use anyhow::Result;
use burn::tensor::Device;
use burn::train::{Learner, SupervisedTraining, TrainStep, logger::InMemoryMetricLogger, metric::LossMetric};
use burn_ddp::{
    ProcessGroup, World,
    context::use_threads,
    loader::{DistributedLoader, ShardedLoader},
    lr::WarmupLr,
    metric::GlobalAccuracy,
    process::{console::print_line, timing::median},
    strategy::{DdpStrategy, NoopRenderer, Observer, StepReport},
};
use clap::Args;
use mnist::{
    batch::{ImageBatcher, MnistBatch, Sample},
    model::{Net, NetConfig, sgd},
};
use std::{
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

#[derive(Args, Clone, Debug)]
pub struct Wrapper {
    /// Samples per step
    #[arg(long, default_value_t = 64, value_parser = burn_ddp::context::values::positive)]
    batch_size: usize,
    /// Steps per run
    #[arg(long, default_value_t = 30, value_parser = burn_ddp::context::values::positive)]
    steps: usize,
    /// Interleaved runs of each kind
    #[arg(long, default_value_t = 5, value_parser = burn_ddp::context::values::positive)]
    rounds: usize,
    /// Compute threads
    #[arg(long, default_value_t = 1, value_parser = burn_ddp::context::values::positive)]
    threads: usize,
}

const RATE: f64 = 0.05;
const ALONE: World = World { rank: 0, size: 1 };

pub fn run(bench: &Wrapper) -> Result<ExitCode> {
    use_threads(bench.threads)?;
    let device = Device::flex().autodiff();
    let images = Arc::new(Repeated::new(bench.batch_size * (bench.steps + 1))?);
    let net = NetConfig { batch_norm: false, dropout: [0.25, 0.5], ..NetConfig::default() }.init(&device);
    let loader = || {
        let loader = ShardedLoader::builder(images.clone(), ImageBatcher::default())
            .batch_size(bench.batch_size)
            .shuffle(1)
            .num_workers(1);
        Arc::new(loader.build(ALONE))
    };
    let (batch, threads, steps) = (bench.batch_size, bench.threads, bench.steps);
    print_line(&format!("# batch {batch}, {threads} thread(s), {steps} steps per run, median ms per step"))?;
    let columns = ["round", "bare", "ddp", "ratio", "bare cpu", "ddp cpu", "ratio"];
    print_line(&columns.map(|c| format!("{c:>9}")).join(" "))?;
    let mut rounds: [Vec<f64>; 6] = Default::default();
    for round in 1..=bench.rounds {
        let bare = || bare_loop(net.clone(), &loader(), steps, &device);
        let ddp = || through_ddp(net.clone(), loader(), steps, &device);
        // Alternating, so that neither is always first.
        let (bare, ddp) = if round % 2 == 0 {
            let bare = bare()?;
            (bare, ddp()?)
        } else {
            let ddp = ddp()?;
            (bare()?, ddp)
        };
        let row = [bare[0], ddp[0], ddp[0] / bare[0], bare[1], ddp[1], ddp[1] / bare[1]];
        print_row(&round.to_string(), row)?;
        rounds.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
    }
    print_row("medians", rounds.map(median))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints times in seconds, and ratios.
fn print_row(name: &str, [bare, ddp, ratio, bare_cpu, ddp_cpu, cpu_ratio]: [f64; 6]) -> Result<()> {
    let group = |a: f64, b: f64, ratio: f64| format!("{:>9.2} {:>9.2} {ratio:>9.4}", 1e3 * a, 1e3 * b);
    print_line(&format!("{name:>9} {} {}", group(bare, ddp, ratio), group(bare_cpu, ddp_cpu, cpu_ratio)))
}

type Loader = ShardedLoader<Sample, MnistBatch>;

/// Wall-clock time and processor time in seconds.
type Seconds = [f64; 2];

/// Records the time of every step.
struct Clock(Mutex<(Instant, f64, [Vec<f64>; 2])>);

impl Clock {
    fn start() -> Self {
        Self(Mutex::new((Instant::now(), processor_seconds(), Default::default())))
    }

    fn tick(&self) {
        let (now, processor) = (Instant::now(), processor_seconds());
        let (last, last_processor, times) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        times[0].push(now.duration_since(*last).as_secs_f64());
        times[1].push(processor - *last_processor);
        (*last, *last_processor) = (now, processor);
    }

    /// Medians over all steps but the first.
    fn medians(&self) -> Seconds {
        let times = &self.0.lock().unwrap_or_else(PoisonError::into_inner).2;
        times.each_ref().map(|times| median(times.iter().skip(1).copied().collect()))
    }
}

impl Observer for Clock {
    fn step_done(&self, _: &StepReport) {
        self.tick();
    }
}

/// Seconds per step of a plain Burn loop.
fn bare_loop(mut net: Net, loader: &Loader, steps: usize, device: &Device) -> Result<Seconds> {
    let (mut optimizer, clock) = (sgd(0.9, false, 0.0), Clock::start());
    for share in loader.epoch(1, 0, device).take(steps + 1) {
        let output = TrainStep::step(&net, share?.item);
        net = optimizer.step(RATE, net, output.grads);
        clock.tick();
    }
    Ok(clock.medians())
}

/// Seconds per step of the strategy on one device.
fn through_ddp(net: Net, loader: Arc<Loader>, steps: usize, device: &Device) -> Result<Seconds> {
    let clock = Arc::new(Clock::start());
    let test = { Arc::new(ShardedLoader::builder(Repeated::new(1)?, ImageBatcher::default()).build(ALONE)) };
    let ddp = DdpStrategy::new(ProcessGroup::solo(), device, loader.clone(), test.clone())
        .with_observer(clock.clone())
        .with_max_steps(Some(steps + 1));
    let training = SupervisedTraining::<Net>::new(".", loader, test)
        .metrics((LossMetric::new(), GlobalAccuracy::default()))
        .with_metric_logger(InMemoryMetricLogger::default())
        .with_application_logger(None)
        .num_epochs(1)
        .renderer(Box::new(NoopRenderer));
    ddp.launch(training, Learner::new(net, sgd(0.9, false, 0.0), WarmupLr::new(RATE, RATE, 0)))?;
    Ok(clock.medians())
}
