//! A burn-train program on any number of ranks, which fits a curve through points.
//!
//! The line that makes the `Learner` distributed is marked with DDP. Sharded loaders divide the data.
//!
//! ```text
//! cargo run --example custom_learner         # two processes
//! cargo run --example custom_learner -- 1    # one process
//! burn-ddp launch --nproc-per-node 4 -- target/debug/examples/custom_learner
//! ```

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::nn::{
    Linear, LinearConfig, Tanh,
    loss::{MseLoss, Reduction},
};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Tensor};
use burn::train::{
    InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep, TrainingStrategy,
    logger::InMemoryMetricLogger, metric::LossMetric,
};
use burn_ddp::{
    context::values::positive, launch::spawn, process::exit, run::tensorboard::TensorBoardLogger,
    trainer::ConsoleRenderer,
};
use clap::Parser;
use collective::{
    InitMethod, Options, ProcessGroup, World,
    loader::ShardedLoader,
    strategy::{DdpStrategy, collective_error},
};
use std::{path::PathBuf, process::ExitCode, sync::Arc};

/// Fits a curve through points.
#[derive(Parser)]
struct Args {
    /// Processes to start, unless a launcher has started them
    #[arg(default_value_t = 2, value_parser = positive)]
    processes: usize,
    /// Folder for TensorBoard event files
    #[arg(long)]
    log_dir: Option<PathBuf>,
}

#[derive(Module, Debug)]
struct Curve {
    hidden: Linear,
    output: Linear,
}

#[derive(Clone, Debug)]
struct Points(Tensor<2>, Tensor<2>);

impl Curve {
    fn regress(&self, Points(x, y): Points) -> RegressionOutput {
        let output = self.output.forward(Tanh::new().forward(self.hidden.forward(x)));
        let loss = MseLoss::new().forward(output.clone(), y.clone(), Reduction::Mean);
        RegressionOutput::new(loss, output, y)
    }
}

impl TrainStep for Curve {
    type Input = Points;
    type Output = RegressionOutput;
    fn step(&self, points: Points) -> TrainOutput<RegressionOutput> {
        let output = self.regress(points);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Curve {
    type Input = Points;
    type Output = RegressionOutput;
    fn step(&self, points: Points) -> RegressionOutput {
        self.regress(points)
    }
}

/// Batches points into tensors.
struct Stack;
impl Batcher<[f32; 2], Points> for Stack {
    fn batch(&self, points: Vec<[f32; 2]>, device: &Device) -> Points {
        let column = |i: usize| {
            Tensor::<1>::from_data(&*points.iter().map(|p| p[i]).collect::<Vec<_>>(), device).unsqueeze_dim(1)
        };
        Points(column(0), column(1))
    }
}

/// Samples of all ranks per step.
const BATCH: usize = 48;

fn main() -> ExitCode {
    let args = Args::parse();
    exit::report(spawn(args.processes, |_environment| {
        let group = ProcessGroup::init(InitMethod::Env, Options::default())?;
        let world = World { rank: group.rank(), size: group.world_size() };
        let device = Device::flex().autodiff();
        device.seed(7);
        let linear = |from, to| LinearConfig::new(from, to).init(&device);
        let model = Curve { hidden: linear(1, 32), output: linear(32, 1) };
        let batch_size = BATCH / world.size;
        let load = |count: u16| {
            let x = (0..count).map(|i| 2.0 * f32::from(i) / f32::from(count) - 1.0);
            let points = InMemDataset::new(x.map(|x| [x, (3.0 * x).sin()]).collect());
            Arc::new(ShardedLoader::builder(points, Stack).batch_size(batch_size).shuffle(7).build(world))
        };
        let (train, test) = (load(1000), load(301));
        // ANCHOR: learner
        let ddp = DdpStrategy::new(group.clone(), &device, train.clone(), test.clone());
        let learner = Learner::new(model, AdamConfig::new().init(), 0.02);
        let training = SupervisedTraining::<Curve>::new(".", train, test)
            .metrics((LossMetric::new(),))
            .with_application_logger(None)
            .renderer(Box::new(ConsoleRenderer::new(world.rank == 0)))
            .num_epochs(10)
            .with_training_strategy(TrainingStrategy::Custom(Arc::new(ddp))); // DDP
        // Metrics are means over all ranks; rank 0 writes them.
        let training = match args.log_dir.filter(|_| world.rank == 0) {
            Some(folder) => training.with_metric_logger(TensorBoardLogger::create(&folder)?),
            None => training.with_metric_logger(InMemoryMetricLogger::default()),
        };
        let result = training.launch(learner);
        collective_error(&result).cloned().map_or(Ok(()), Err)?;
        // ANCHOR_END: learner
        group.destroy();
        Ok(ExitCode::SUCCESS)
    }))
}
