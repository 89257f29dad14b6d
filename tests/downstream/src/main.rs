//! A minimal program outside this repository: fits a curve through points with the trainer.

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::nn::{
    Linear, LinearConfig, Tanh,
    loss::{MseLoss, Reduction},
};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Tensor};
use burn::train::{InferenceStep, RegressionOutput, TrainOutput, TrainStep};
use burn_ddp::{Context, Trainer, TrainerArgs};
use clap::Parser;
use std::process::ExitCode;

/// Train a curve through points
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    trainer: TrainerArgs,
    /// Units of the hidden layer
    #[arg(long, default_value_t = 32)]
    hidden: usize,
}

#[derive(Module, Debug)]
struct Curve {
    hidden: Linear,
    output: Linear,
}

/// Inputs and targets, each `[batch, 1]`.
#[derive(Clone, Debug)]
struct Points(Tensor<2>, Tensor<2>);

impl Curve {
    fn new(units: usize, device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Self { hidden: linear(1, units), output: linear(units, 1) }
    }

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

/// `count` points of a sine curve.
fn points(count: u16) -> InMemDataset<[f32; 2]> {
    let x = (0..count).map(|i| 2.0 * f32::from(i) / f32::from(count) - 1.0);
    InMemDataset::new(x.map(|x| [x, (3.0 * x).sin()]).collect())
}

fn train(context: &Context, args: &Args) -> anyhow::Result<()> {
    let trainer = Trainer::new(context, &args.trainer).setting("hidden", args.hidden);
    let loaders = trainer.loaders(points(1000), points(301), Stack);
    let model = trainer.init(|device| Curve::new(args.hidden, device));
    trainer.fit(model, AdamConfig::new().init(), loaders)
}

fn main() -> ExitCode {
    burn_ddp::main(|args: &Args| &args.trainer, train)
}
