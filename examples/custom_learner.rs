//! A burn-train program on any number of ranks, which fits a curve through points.
//!
//! Lines marked `DDP` make the program distributed. The comments with `alone:` are the lines of a program for one
//! device that they replace.
//!
//! ```text
//! cargo run --example custom_learner                                          # a process per GPU, or two
//! burn-ddp launch --nproc-per-node 4 -- target/debug/examples/custom_learner
//! ```

// alone: use burn::data::dataloader::DataLoaderBuilder;
use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::nn::{
    Linear, LinearConfig, Tanh,
    loss::{MseLoss, Reduction},
};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Tensor};
use burn::train::{
    InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep, metric::LossMetric,
};
use burn_ddp::Context; // DDP
use burn_ddp::{loader::ShardedLoader, strategy::DdpStrategy}; // DDP
use burn_ddp::{run::tensorboard::TensorBoardLogger, trainer::ConsoleRenderer};
use clap::Parser;
use std::path::PathBuf;
use std::{process::ExitCode, sync::Arc}; // DDP

/// Fits a curve through points
#[derive(Parser)]
struct Args {
    /// Folder for burn-train's log files
    #[arg(long, default_value = "/tmp/custom_learner")]
    dir: PathBuf,
    /// Folder for TensorBoard event files, in place of the log files
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

// ANCHOR: learner
fn main() -> ExitCode /* DDP */ {
    burn_ddp::launch(train) // DDP
} // DDP

// alone: fn main() -> anyhow::Result<()> {
fn train(context: &Context) -> anyhow::Result<()> /* DDP */ {
    let args = Args::parse();
    // alone: let device = Device::flex().autodiff();
    let device = context.device().clone(); // DDP
    device.seed(7);
    let linear = |from, to| LinearConfig::new(from, to).init(&device);
    let model = Curve { hidden: linear(1, 32), output: linear(32, 1) };
    let load = |count: u16| {
        let x = (0..count).map(|i| 2.0 * f32::from(i) / f32::from(count) - 1.0);
        let points = InMemDataset::new(x.map(|x| [x, (3.0 * x).sin()]).collect());
        // alone: DataLoaderBuilder::new(Stack).batch_size(BATCH).shuffle(7).build(points)
        let batch_size = BATCH / context.world_size(); // DDP
        let loader = ShardedLoader::builder(points, Stack).batch_size(batch_size).shuffle(7); // DDP
        Arc::new(loader.build(context.world())) // DDP
    };
    let (train, test) = (load(1000), load(301));
    let ddp = DdpStrategy::new(context.group().clone(), &device, train.clone(), test.clone()); // DDP
    let learner = Learner::new(model, AdamConfig::new().init(), 0.02);
    let training = SupervisedTraining::<Curve>::new(args.dir, train, test)
        .metrics((LossMetric::new(),))
        .renderer(Box::new(ConsoleRenderer::new(true)))
        .num_epochs(10)
        .summary();
    // Metrics are means over all ranks; rank 0 writes them.
    let training = match args.log_dir.filter(|_| context.is_main()) {
        Some(folder) => training.with_metric_logger(TensorBoardLogger::create(&folder)?),
        None => training,
    };
    // alone: training.launch(learner);
    ddp.launch(training, learner)?; // DDP
    Ok(())
}
// ANCHOR_END: learner
