//! A forecaster of water levels with metrics of its own: mean squared error as loss, mean absolute error (MAE) and the
//! largest error, which a callback computes. Parameter groups have their own weight decay and learning rate.
//!
//!     cargo run --example regression                                       # DDP: a process per GPU, or two
//!     cargo run --example regression -- --epochs 50 --monitor mae --early-stop 3
//!     cargo run --example regression -- --init-from runs/first --freeze-hidden

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::{Module, ParamGroup};
use burn::nn::{Linear, LinearConfig, Tanh};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, ExecutionError, Tensor, TensorData};
use burn::train::ItemLazy;
use burn_ddp::dp::ParallelStep;
use burn_ddp::metric::{MetricInfo, StepOutput};
use burn_ddp::strategy::{Callback, Distributed, EpochReport, Join, LoggedValue};
use burn_ddp::{Context, Trainer, TrainerArgs};
use clap::Parser;
use std::process::ExitCode;

/// Train a forecaster of water levels
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    trainer: TrainerArgs,
    /// Keep the weights of the hidden layer
    #[arg(long)]
    freeze_hidden: bool,
    /// Learning rate of the hidden layer, relative to --lr
    #[arg(long, default_value_t = 1.0)]
    hidden_lr: f64,
}

/// Number of values from which the next one is predicted.
const PAST: usize = 8;

/// Windows of the series `[batch, PAST + 1]`, the last value of which is to be predicted.
type Windows = Tensor<2>;

#[derive(Module, Debug)]
struct Forecaster {
    hidden: Linear,
    output: Linear,
}

impl Forecaster {
    fn new(device: &Device) -> Self {
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        Self { hidden: layer(PAST, 16), output: layer(16, 1) }
    }
}

/// The forward pass and the loss.
impl ParallelStep for Forecaster {
    type Outputs = Tensor<2>;

    fn forward_part(&self, windows: Windows) -> Tensor<2> {
        let past = windows.narrow(1, 0, PAST);
        self.output.forward(Tanh::new().forward(self.hidden.forward(past)))
    }

    /// Returns the mean squared error `[1]` for the gradients, and the errors for metrics.
    fn criterion(&self, forecasts: Tensor<2>, windows: Windows) -> (Tensor<1>, Errors) {
        let errors = forecasts - windows.narrow(1, PAST, 1);
        (errors.clone().powi_scalar(2).mean(), Errors(errors.inner().flatten(0, 1)))
    }
}

burn_ddp::train_steps!(Forecaster: Windows => Errors);

// ANCHOR: output
/// Errors of the predictions `[batch]`.
#[derive(Clone, Debug)]
struct Errors(Tensor<1>);

impl StepOutput for Errors {
    fn metrics() -> Vec<MetricInfo> {
        vec![MetricInfo::loss(), MetricInfo::new("mae").unit("m")]
    }

    fn totals(&self) -> Tensor<1> {
        Tensor::cat(vec![self.0.clone().powi_scalar(2).sum(), self.0.clone().abs().sum()], 0)
    }

    // For metrics of burn-train, which this program does not use.
    fn from_totals(totals: &[f64], _samples: usize) -> Self {
        Errors(Tensor::from_data(totals, &Device::flex()))
    }
}
// ANCHOR_END: output

impl ItemLazy for Errors {
    fn sync(self) -> Result<Self, ExecutionError> {
        Ok(self)
    }
}

// ANCHOR: callback
/// Callback that computes the largest error over the samples of all ranks.
#[derive(Default)]
struct LargestError(f32);

impl Callback<Forecaster> for LargestError {
    fn evaluated(&mut self, Errors(errors): &Errors, _samples: usize) -> Result<(), String> {
        let largest =
            errors.clone().abs().max().try_into_scalar::<f32>().map_err(|error| error.to_string())?;
        self.0 = self.0.max(largest);
        Ok(())
    }

    fn distributed(&mut self) -> Option<&mut dyn Join> {
        Some(self)
    }

    fn evaluation_done(&mut self, _report: &EpochReport) -> Result<Vec<LoggedValue>, String> {
        Ok(vec![LoggedValue::number("max_error", std::mem::take(&mut self.0).into())])
    }
}

impl Distributed for LargestError {
    type State = f32;
    fn state(&mut self) -> f32 {
        self.0
    }
    fn join(&mut self, states: Vec<f32>) {
        self.0 = states.into_iter().fold(0.0, f32::max);
    }
}
// ANCHOR_END: callback

struct Stack;
impl Batcher<Vec<f32>, Windows> for Stack {
    fn batch(&self, windows: Vec<Vec<f32>>, device: &Device) -> Windows {
        Tensor::from_data(TensorData::new(windows.concat(), [windows.len(), PAST + 1]), device)
    }
}

/// Windows that begin at these times of a series with two periods.
fn windows(starts: std::ops::Range<u16>) -> InMemDataset<Vec<f32>> {
    let value = |time: u16| (f32::from(time) / 3.0).sin() + 0.5 * (f32::from(time) / 7.0).sin();
    InMemDataset::new(starts.map(|start| (start..=start + PAST as u16).map(value).collect()).collect())
}

fn train(context: &Context, args: &Args) -> anyhow::Result<()> {
    // ANCHOR: trainer
    let largest = MetricInfo::new("max_error").unit("m");
    let trainer =
        Trainer::new(context, &args.trainer).metric_callback([largest], |_| LargestError::default());
    // ANCHOR_END: trainer
    let loaders = trainer.loaders(windows(0..1000), windows(2000..2201), Stack);
    // ANCHOR: groups
    let (hidden, biases) = (ParamGroup::from_predicate("hidden"), ParamGroup::from_predicate("bias"));
    let trainer = trainer.lr_group(hidden, args.hidden_lr).must_match("hidden-lr", args.hidden_lr);
    let trainer = trainer.must_match("freeze-hidden", args.freeze_hidden).data_parallel();
    let mut model = trainer.init(Forecaster::new);
    if args.freeze_hidden {
        model.hidden = model.hidden.no_grad();
    }
    let adam = |decay| AdamWConfig::new().with_weight_decay(decay);
    let optimizer = adam(1e-4).init().with_group(biases, adam(0.0).build(), None);
    trainer.fit(model, optimizer, loaders)?;
    // ANCHOR_END: groups
    Ok(())
}

fn main() -> ExitCode {
    burn_ddp::main(|args: &Args| &args.trainer, train)
}
