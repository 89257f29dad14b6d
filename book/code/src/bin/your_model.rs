//! Course, chapter "Your own model and data": a classifier of points from a table, with the `Trainer`.

use anyhow::Context as _;
use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn::train::{InferenceStep, TrainOutput, TrainStep};
use burn_ddp::nn::{Linear, LinearConfig, Relu, loss::CrossEntropyLossConfig};
use burn_ddp::optim::AdamConfig;
use burn_ddp::{
    Context, Trainer, TrainerArgs, dp::ParallelStep, metric::Classification,
};
use clap::Parser;
use std::{path::PathBuf, process::ExitCode};

// ANCHOR: args
/// Train a classifier of points
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    trainer: TrainerArgs,
    /// Table of points: x, y and the class, without a header
    #[arg(long, value_name = "FILE")]
    data: PathBuf,
    /// Units of the hidden layers
    #[arg(long, default_value_t = 32)]
    hidden: usize,
}
// ANCHOR_END: args

// ANCHOR: model
/// Three linear layers; maps points `[batch, 2]` to logits `[batch, 3]`.
#[derive(Module, Debug)]
struct Classifier {
    layers: Vec<Linear>,
}

/// Points `[batch, 2]` and classes `[batch]`.
type Points = (Tensor<2>, Tensor<1, Int>);

impl Classifier {
    fn new(units: usize, device: &Device) -> Self {
        let sizes = [(2, units), (units, units), (units, 3)];
        Self {
            layers: sizes
                .map(|(from, to)| LinearConfig::new(from, to).init(device))
                .into(),
        }
    }

    fn forward(&self, points: Tensor<2>) -> Tensor<2> {
        let [first, second, last] = &self.layers[..] else {
            unreachable!("`new` creates three layers")
        };
        let relu = Relu::new();
        let x = relu.forward(second.forward(relu.forward(first.forward(points))));
        last.forward(x)
    }

    /// The mean loss `[1]` for the gradients, and the output for metrics.
    fn judge(
        &self,
        logits: Tensor<2>,
        classes: Tensor<1, Int>,
    ) -> (Tensor<1>, Classification) {
        let loss = CrossEntropyLossConfig::new().init(&logits.device());
        Classification::from_logits(&loss, logits, classes)
    }
}

impl TrainStep for Classifier {
    type Input = Points;
    type Output = Classification;
    fn step(&self, (points, classes): Points) -> TrainOutput<Classification> {
        let (loss, output) = self.judge(self.forward(points), classes);
        TrainOutput::new(self, loss.backward(), output)
    }
}

impl InferenceStep for Classifier {
    type Input = Points;
    type Output = Classification;
    fn step(&self, (points, classes): Points) -> Classification {
        self.judge(self.forward(points), classes).1
    }
}
// ANCHOR_END: model

// ANCHOR: parallel
impl ParallelStep for Classifier {
    type Outputs = Tensor<2>;
    fn forward_part(&self, (points, _): Points) -> Tensor<2> {
        self.forward(points)
    }
    fn criterion(
        &self,
        logits: Tensor<2>,
        (_, classes): Points,
    ) -> (Tensor<1>, Classification) {
        self.judge(logits, classes)
    }
}
// ANCHOR_END: parallel

// ANCHOR: data
/// A row of the table.
type Row = (f32, f32, i32);

/// Batches rows into tensors.
struct ToTensors;
impl Batcher<Row, Points> for ToTensors {
    fn batch(&self, rows: Vec<Row>, device: &Device) -> Points {
        let points: Vec<f32> = rows.iter().flat_map(|(x, y, _)| [*x, *y]).collect();
        let classes: Vec<i32> = rows.iter().map(|row| row.2).collect();
        let count = rows.len();
        (
            Tensor::from_data(TensorData::new(points, [count, 2]), device),
            Tensor::from_data(TensorData::new(classes, [count]), device),
        )
    }
}

/// Reads the table. Every fifth row is for the test.
fn read(args: &Args) -> anyhow::Result<(InMemDataset<Row>, InMemDataset<Row>)> {
    let file = args.data.display();
    let mut table = csv::ReaderBuilder::new();
    let table = table
        .has_headers(false)
        .from_path(&args.data)
        .with_context(|| format!("cannot open {file}"))?;
    let rows: Vec<Row> = table
        .into_deserialize()
        .collect::<Result<_, _>>()
        .with_context(|| format!("cannot read {file}"))?;
    let outside = rows.iter().position(|row| !(0..3).contains(&row.2));
    anyhow::ensure!(
        outside.is_none(),
        "{file}, row {}: the class is not 0, 1 or 2",
        outside.unwrap_or(0) + 1
    );
    let part = |test: bool| {
        rows.iter()
            .enumerate()
            .filter(move |(i, _)| (i % 5 == 4) == test)
            .map(|(_, row)| *row)
    };
    Ok((
        InMemDataset::new(part(false).collect()),
        InMemDataset::new(part(true).collect()),
    ))
}
// ANCHOR_END: data

// ANCHOR: train
fn train(context: &Context, args: &Args) -> anyhow::Result<()> {
    let (train, test) = read(args)?;
    let trainer = Trainer::new(context, &args.trainer)
        .must_match("hidden", args.hidden)
        .data_parallel();
    let loaders = trainer.loaders(train, test, ToTensors);
    let model = trainer.init(|device| Classifier::new(args.hidden, device));
    trainer.fit(model, AdamConfig::new().init(), loaders)?;
    Ok(())
}

fn main() -> ExitCode {
    burn_ddp::main(|args: &Args| &args.trainer, train)
}
// ANCHOR_END: train
