//! `burn-ddp bench wrapper`: the same training as a bare Burn loop and through
//! `DistributedDataParallel` in a world of one.

use super::median;
use crate::{
    batch::{ImageDataset, MnistBatch, Normaliser, Sample},
    console::print_line,
    data::Dataset,
    model::{Net, NetConfig},
    quiet::Quiet,
    train::use_threads,
};
use anyhow::{Result, bail};
use burn::optim::{ModuleOptimizer, SgdConfig, momentum::MomentumConfig};
use burn::tensor::Device;
use burn::train::{
    Learner, SupervisedTraining, TrainStep, TrainingStrategy, logger::InMemoryMetricLogger,
    metric::LossMetric,
};
use clap::Args;
use collective::{
    ProcessGroup, World,
    loader::{DistributedLoader, ShardedLoader},
    lr::WarmupLr,
    metric::GlobalAccuracy,
    strategy::{DistributedDataParallel, Observer, StepReport},
};
use std::{
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

#[derive(Args, Clone, Debug)]
pub struct Wrapper {
    /// Samples a step
    #[arg(long, default_value_t = 64, value_parser = crate::cli::positive)]
    batch_size: usize,
    /// Steps in a run
    #[arg(long, default_value_t = 30, value_parser = crate::cli::positive)]
    steps: usize,
    /// Runs of each kind, interleaved
    #[arg(long, default_value_t = 5, value_parser = crate::cli::positive)]
    rounds: usize,
    /// Threads to compute with
    #[arg(long, default_value_t = 1, value_parser = crate::cli::positive)]
    threads: usize,
}

const RATE: f64 = 0.05;

pub fn run(bench: &Wrapper) -> Result<ExitCode> {
    use_threads(bench.threads)?;
    let device = Device::flex().autodiff();
    let images = Arc::new(ImageDataset(Dataset::digits(bench.batch_size * (bench.steps + 1), 0, 1).train));
    let net = NetConfig { batch_norm: false, dropout: [0.25, 0.5] }.init(&device);
    let loader = || {
        let world = World { rank: 0, size: 1 };
        Arc::new(ShardedLoader::new(
            images.clone(),
            Arc::new(Normaliser),
            world,
            bench.batch_size,
            Some(1),
            1,
        ))
    };
    print_line(&format!(
        "# batch {}, {} thread(s), {} steps a run, median ms a step",
        bench.batch_size, bench.threads, bench.steps
    ));
    print_line(&["round", "bare", "ddp", "ratio"].map(|c| format!("{c:>9}")).join(" "));
    let (mut bare, mut wrapped, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=bench.rounds {
        // In turn, so that neither always comes first.
        let (b, w) = if round % 2 == 0 {
            let b = bare_loop(net.clone(), &loader(), bench.steps, &device)?;
            (b, through_ddp(net.clone(), loader(), bench.steps, &device)?)
        } else {
            let w = through_ddp(net.clone(), loader(), bench.steps, &device)?;
            (bare_loop(net.clone(), &loader(), bench.steps, &device)?, w)
        };
        print_line(&format!("{round:>9} {:>9.2} {:>9.2} {:>9.4}", 1e3 * b, 1e3 * w, w / b));
        bare.push(b);
        wrapped.push(w);
        ratios.push(w / b);
    }
    let (bare, wrapped, ratio) = (1e3 * median(bare), 1e3 * median(wrapped), median(ratios));
    print_line(&format!("{:>9} {bare:>9.2} {wrapped:>9.2} {ratio:>9.4}", "medians"));
    Ok(ExitCode::SUCCESS)
}

type Loader = ShardedLoader<Sample, MnistBatch>;

fn optimizer() -> ModuleOptimizer {
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    SgdConfig::new().with_momentum(Some(momentum)).init()
}

/// Median seconds of a step of what a Burn user writes by hand.
fn bare_loop(mut net: Net, loader: &Loader, steps: usize, device: &Device) -> Result<f64> {
    let (mut optimizer, mut times) = (optimizer(), Vec::new());
    let mut clock = Instant::now();
    for share in loader.epoch(1, 0, device).take(steps + 1) {
        let output = TrainStep::step(&net, share?.item);
        net = optimizer.step(RATE, net, output.grads);
        times.push(clock.elapsed().as_secs_f64());
        clock = Instant::now();
    }
    Ok(median(times.split_off(1)))
}

/// Keeps the time of every step.
#[derive(Default)]
struct Clock(Mutex<Vec<Duration>>);

impl Observer for Clock {
    fn step_done(&self, report: &StepReport) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(report.elapsed);
    }
}

/// Median seconds of a step of what the trainer does on one device.
fn through_ddp(net: Net, loader: Arc<Loader>, steps: usize, device: &Device) -> Result<f64> {
    let clock = Arc::new(Clock::default());
    let test = {
        let world = World { rank: 0, size: 1 };
        let images = Arc::new(ImageDataset(Dataset::digits(1, 1, 1).test));
        Arc::new(ShardedLoader::new(images, Arc::new(Normaliser), world, 1, None, 0))
    };
    let ddp = DistributedDataParallel::new(ProcessGroup::solo(), device, loader.clone(), test.clone())
        .with_observer(clock.clone())
        .with_max_steps(Some(steps + 1));
    let ddp = Arc::new(ddp);
    let training = SupervisedTraining::<Net>::new(".", loader, test)
        .metrics((LossMetric::new(), GlobalAccuracy::default()))
        .with_metric_logger(InMemoryMetricLogger::default())
        .with_application_logger(None)
        .num_epochs(1)
        .renderer(Box::new(Quiet))
        .with_training_strategy(TrainingStrategy::Custom(ddp.clone()));
    let result = training.launch(Learner::new(net, optimizer(), WarmupLr::new(RATE, RATE, 0)));
    if let Some(failure) = ddp.failure() {
        return Err(failure.into());
    }
    if let Some(error) = result.error {
        bail!("training stopped: {error}");
    }
    let times = clock.0.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(median(times.iter().skip(1).map(Duration::as_secs_f64).collect()))
}
