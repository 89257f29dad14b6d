//! `mnist_bench overlap`: the training step over an artificially slow link, with and without overlap.

use crate::timing::timed;
use anyhow::Result;
use burn::tensor::{Device, Tensor, TensorData};
use burn::train::TrainStep;
use burn_ddp::{
    Options, ProcessGroup, ReduceOp, Transport,
    context::{use_threads, world_args::WorldArgs},
    gradient::{Bucket, BucketSizes, CommHook, Reducer, ReducerOptions},
    launch, module_state,
    process::{console::print_line, timing::median},
};
use clap::Args;
use mnist::{
    batch::MnistBatch,
    model::{Net, NetConfig},
};
use serde::Serialize;
use std::{
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

#[derive(Args, Clone, Debug)]
pub struct Overlap {
    /// Number of ranks on this machine
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    ranks: u16,
    /// Transport: auto, shm, tcp or mpi (under mpirun)
    #[arg(long, default_value = "auto")]
    transport: Transport,
    /// Communication times, relative to the compute time of a step
    #[arg(long, default_value = "0.25,0.5,0.75", value_delimiter = ',', value_parser = ratio)]
    ratios: Vec<f64>,
    /// Samples per rank and step
    #[arg(long, default_value_t = 32, value_parser = burn_ddp::context::values::positive)]
    batch_size: usize,
    /// Steps of each kind, interleaved
    #[arg(long, default_value_t = 15, value_parser = burn_ddp::context::values::positive)]
    rounds: usize,
    /// Compute threads per rank
    #[arg(long, default_value_t = 1, value_parser = burn_ddp::context::values::positive)]
    threads: usize,
    /// Print JSON lines instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    world: WorldArgs,
}

fn ratio(text: &str) -> Result<f64, String> {
    burn_ddp::context::values::number("a number from 0.01 to 100", |x| (0.01..=100.0).contains(&x))(text)
}

/// One line of the table; times are medians over steps of the slowest rank's.
#[derive(Serialize)]
struct Row {
    ratio: f64,
    /// Time of forward and backward without communication.
    compute_ms: f64,
    /// Time of all buckets on the link in sequence.
    communication_ms: f64,
    after_backward_ms: f64,
    overlapped_ms: f64,
    /// Ratio of the overlapped step to the longer of the two.
    over_longer: f64,
    /// Ratio of the overlapped step to their sum.
    over_sum: f64,
}

/// A hook that simulates a link by sleeping a number of nanoseconds per byte.
///
/// Backward continues meanwhile, as with a network card.
#[derive(Debug, Default)]
struct SlowLink {
    picoseconds_a_byte: AtomicU64,
    /// Time spent in this step.
    spent: Mutex<Duration>,
}

impl CommHook for SlowLink {
    fn name(&self) -> &str {
        "slow link"
    }

    fn reduce(&self, bucket: &mut Bucket<'_>, group: &ProcessGroup) -> burn_ddp::Result<()> {
        let begun = Instant::now();
        let bytes = size_of_val(bucket.values()) as u64;
        let picoseconds = bytes * self.picoseconds_a_byte.load(Ordering::Relaxed);
        thread::sleep(Duration::from_nanos(picoseconds / 1000));
        group.all_reduce(bucket.values_mut(), ReduceOp::Sum)?;
        *self.spent.lock().unwrap_or_else(PoisonError::into_inner) += begun.elapsed();
        Ok(())
    }
}

pub fn run(bench: &Overlap) -> Result<ExitCode> {
    let Some(environment) = bench.world.environment()? else {
        return launch::ranks(usize::from(bench.ranks), "bench");
    };
    use_threads(bench.threads)?;
    measure(bench, &bench.world.connect(environment, bench.transport, Options::default())?)?;
    Ok(ExitCode::SUCCESS)
}

/// A model with a batch and reducers.
struct Rig<'a> {
    group: &'a ProcessGroup,
    net: Net,
    batch: MnistBatch,
    link: Arc<SlowLink>,
    /// Reducers with and without overlap.
    reducers: [Reducer; 2],
}

fn measure(bench: &Overlap, group: &ProcessGroup) -> Result<()> {
    let device = Device::flex().autodiff();
    let net = NetConfig::default().init(&device);
    let net = module_state::broadcast(net, group, 0)?;
    let link = Arc::new(SlowLink::default());
    let reducer = |overlap| {
        let hook: Arc<dyn CommHook> = link.clone();
        Reducer::new(
            &net,
            group,
            ReducerOptions {
                buckets: BucketSizes::default(),
                overlap,
                hook: Some(hook),
                ..ReducerOptions::default()
            },
        )
    };
    let reducers = [reducer(true)?, reducer(false)?];
    let batch = batch(bench.batch_size, &device);
    let mut rig = Rig { group, net, batch, link, reducers };
    let prints = group.rank() == 0;
    if prints && !bench.json {
        let (ranks, threads) = (group.world_size(), bench.threads);
        let size = bench.batch_size;
        print_line(&format!(
            "# {ranks} ranks x {threads} thread(s), batch {size} per rank, a slow link before {}",
            group.transport()
        ))?;
        print_line(&format!("# medians of {} rounds, ms", bench.rounds))?;
        let columns = ["ratio", "compute", "link", "after", "overlapped", "/ longer", "/ sum"];
        print_line(&columns.map(|c| format!("{c:>11}")).join(" "))?;
    }
    for &ratio in &bench.ratios {
        let row = rig.row(bench, ratio)?;
        if prints && bench.json {
            print_line(&serde_json::to_string(&row)?)?;
        } else if prints {
            let Row { compute_ms, communication_ms, after_backward_ms, overlapped_ms, .. } = row;
            let times = [row.ratio, compute_ms, communication_ms, after_backward_ms, overlapped_ms];
            let times = times.map(|time| format!("{time:>11.2}")).join(" ");
            print_line(&format!("{times} {:>11.3} {:>11.3}", row.over_longer, row.over_sum))?;
        }
    }
    Ok(())
}

/// A batch of noise.
fn batch(size: usize, device: &Device) -> MnistBatch {
    let pixels: Vec<f32> = (0..size * 784).map(|i| ((i * i % 1013) as f32 * 0.37).sin()).collect();
    let labels: Vec<i32> = (0..size).map(|i| (i % 10) as i32).collect();
    MnistBatch {
        images: Tensor::from_data(TensorData::new(pixels, [size, 1, 28, 28]), device),
        labels: Tensor::from_data(TensorData::new(labels, [size]), device),
    }
}

impl Rig<'_> {
    fn row(&mut self, bench: &Overlap, ratio: f64) -> Result<Row> {
        // Rank 0 measures how slow the link must be for this ratio.
        let mut alone = Vec::new();
        for _ in 0..5 {
            alone.push(self.alone()?);
        }
        let bytes = 4 * burn::module::Module::num_params(&self.net);
        let mut picoseconds = [(median(alone) * ratio * 1e12 / bytes as f64) as i64];
        self.group.broadcast(&mut picoseconds, 0)?;
        self.link.picoseconds_a_byte.store(picoseconds[0] as u64, Ordering::Relaxed);

        let (mut alone, mut overlapped, mut after, mut spent) = (vec![], vec![], vec![], vec![]);
        for round in 0..=bench.rounds {
            let times = [self.alone()?, self.synchronised(0)?, self.synchronised(1)?];
            let link = std::mem::take(&mut *self.link.spent.lock().unwrap_or_else(PoisonError::into_inner));
            // The slowest rank determines the time of a step.
            let mut worst = [times[0], times[1], times[2], link.as_secs_f64() / 2.0];
            self.group.all_reduce(&mut worst, ReduceOp::Max)?;
            // The first round compares gradients bit for bit.
            if round > 0 {
                alone.push(worst[0]);
                overlapped.push(worst[1]);
                after.push(worst[2]);
                spent.push(worst[3]);
            }
        }
        let [compute, overlapped, after, link] =
            [alone, overlapped, after, spent].map(|times| 1e3 * median(times));
        Ok(Row {
            ratio,
            compute_ms: compute,
            communication_ms: link,
            after_backward_ms: after,
            overlapped_ms: overlapped,
            over_longer: overlapped / compute.max(link),
            over_sum: overlapped / (compute + link),
        })
    }

    /// Seconds of a step without synchronisation.
    fn alone(&self) -> Result<f64> {
        self.group.barrier()?;
        let (_, time) = timed(|| Ok(TrainStep::step(&self.net, self.batch.clone())))?;
        Ok(time.as_secs_f64())
    }

    /// Seconds of a step with gradient synchronisation.
    fn synchronised(&mut self, reducer: usize) -> Result<f64> {
        self.group.barrier()?;
        let [samples, _, _, _] = self.batch.images.dims();
        let (group, net, batch) = (self.group, &self.net, self.batch.clone());
        let reducer = &mut self.reducers[reducer];
        let (_, time) = timed(|| {
            let step = reducer.step(samples, samples * group.world_size());
            let output = TrainStep::step(&step.watch(net), batch);
            Ok(step.finish(output.grads, net, &mut vec![])?)
        })?;
        if let Some(reason) = reducer.fallback() {
            anyhow::bail!("this step cannot overlap: {reason}");
        }
        Ok(time.as_secs_f64())
    }
}
