//! `Trainer`: the whole of a training program for any Burn model. Flags in, a run folder out.

mod console_renderer;
mod fit;
#[cfg(feature = "cuda")]
mod kernel_progress;
mod loaders;
mod prepare;
pub mod progress;
mod resumed;
mod strategy;

pub use collective::strategy::NoopRenderer;
pub use console_renderer::ConsoleRenderer;
pub use loaders::Loaders;

use crate::{
    config::{DatasetName, Resolved, TrainerArgs, config_file},
    context::{self, Context},
    process::exit,
    run::tensorboard::EventLog,
};
use anyhow::Result;
use burn::tensor::Device;
use burn::train::{LearnerModel, SupervisedTraining, TrainingStrategy};
use clap::Parser;
use collective::{
    data_parallel::{DataParallelConfig, ParallelStep},
    metric::StepOutput,
    strategy::{Callback, DpStrategy, TrainedOutput, ValidOutput},
};
use serde::Serialize;
use serde_json::{Map, Value};
use std::{path::PathBuf, process::ExitCode, sync::Arc};
use strategy::Setup;

/// Parses the command line, with the files that `--config` names, and runs `program` on every rank.
///
/// `trainer` is where `P` has its [`TrainerArgs`]. Returns the exit code for `main`; errors are printed once. See the
/// [example](crate).
pub fn main<P, F>(trainer: fn(&P) -> &TrainerArgs, program: F) -> ExitCode
where
    P: Parser,
    F: FnOnce(&Context, &P) -> Result<()>,
{
    exit::report(
        config_file::parse::<P>()
            .and_then(|args| start(trainer(&args), || Ok(()), |context| program(context, &args))),
    )
}

/// Runs `program` on every rank after the flags were checked, those of the program by `check`: [`main`] for a command
/// line that is parsed already.
///
/// # Errors
/// If flags are wrong, a rank cannot be started, or `program` fails on this rank.
pub fn start<F>(args: &TrainerArgs, check: impl FnOnce() -> Result<()>, program: F) -> Result<ExitCode>
where
    F: FnOnce(&Context) -> Result<()>,
{
    // Under a launcher, rank 0 alone reports what all ranks find.
    if args.context.world.environment()?.is_none_or(|environment| environment.is_main()) {
        args.check()?;
        check()?;
    }
    context::start(&args.context, program)
}

/// The files of a run that a callback may add to. Only rank 0 has them.
pub struct RunFiles {
    /// The run folder.
    pub folder: PathBuf,
    /// TensorBoard's event file.
    pub events: Arc<EventLog>,
}

type MakeCallback<M> = Box<dyn FnOnce(Option<&RunFiles>) -> Box<dyn Callback<M>>>;
type Metrics<M> = Box<dyn FnOnce(SupervisedTraining<M>) -> SupervisedTraining<M>>;
type MakeDp<M> = fn(DataParallelConfig, &Loaders<M>, Setup<'_, M>) -> Result<TrainingStrategy<M>>;

/// Trains a model as the flags say: see the [example](crate).
pub struct Trainer<'a, M: LearnerModel> {
    context: &'a Context,
    args: &'a TrainerArgs,
    resolved: Resolved,
    /// Settings that a resumed run must share, besides those of `resolved`.
    identity: Map<String, Value>,
    data_digest: Option<String>,
    callbacks: Vec<MakeCallback<M>>,
    metrics: Vec<Metrics<M>>,
    data_parallel: Option<MakeDp<M>>,
}

impl<'a, M> Trainer<'a, M>
where
    M: LearnerModel,
    TrainedOutput<M>: StepOutput,
    ValidOutput<M>: StepOutput,
{
    /// A trainer for this rank.
    pub fn new(context: &'a Context, args: &'a TrainerArgs) -> Self {
        Self {
            context,
            args,
            resolved: Resolved::default(),
            identity: Map::new(),
            data_digest: None,
            callbacks: Vec::new(),
            metrics: Vec::new(),
            data_parallel: None,
        }
    }

    /// Names the data set and where it was read from, for the reader.
    pub fn dataset(mut self, name: &str, source: &str) -> Self {
        self.resolved.dataset = Some(DatasetName { name: name.into(), source: source.into() });
        self
    }

    /// Records a setting of the program, such as a hidden size, in `config.json`. It must be the same on all ranks,
    /// and a checkpoint is resumed only with the same value. `name` is that of the flag, without dashes in front.
    pub fn setting(mut self, name: &str, value: impl Serialize) -> Self {
        // What JSON cannot express, such as NaN, is null.
        let value = serde_json::to_value(value).unwrap_or_default();
        self.identity.insert(format!("--{name}"), value.clone());
        self.resolved.own.insert(name.replace('-', "_"), value);
        self
    }

    /// Records a value in `config.json` that does not decide the result of the run, or decides it through other
    /// settings.
    pub fn recorded(mut self, name: &str, value: impl Serialize) -> Self {
        self.resolved.own.insert(name.into(), serde_json::to_value(value).unwrap_or_default());
        self
    }

    /// Refuses to resume a checkpoint that was made with another value, without recording it in `config.json`.
    pub fn identity(mut self, what: &str, value: impl Serialize) -> Self {
        self.identity.insert(what.into(), serde_json::to_value(value).unwrap_or_default());
        self
    }

    /// Verifies that all ranks have the same data, by a digest of it, and refuses to resume a checkpoint that was made
    /// with other data. `what` names the digest in errors, after the flag that chooses the data.
    pub fn data_digest(mut self, what: &str, digest: String) -> Self {
        self.data_digest = Some(digest.clone());
        self.identity(what, digest)
    }

    /// Records the value that was decided for a flag, so that `--config` repeats the run with it.
    pub fn decided(mut self, flag: &str, value: impl Into<Value>) -> Self {
        self.resolved.decided.insert(flag.into(), value.into());
        self
    }

    /// Adds a callback, which gets the files of the run on rank 0. It sees the test set: after every epoch or, with
    /// `--valid-split`, at the end of the run.
    pub fn callback<C>(mut self, make: impl FnOnce(Option<&RunFiles>) -> C + 'static) -> Self
    where
        C: Callback<M> + 'static,
    {
        self.callbacks.push(Box::new(|files| Box::new(make(files))));
        self
    }

    /// Adds to burn-train's training, such as metrics for the dashboard.
    pub fn learner(
        mut self,
        add: impl FnOnce(SupervisedTraining<M>) -> SupervisedTraining<M> + 'static,
    ) -> Self {
        self.metrics.push(Box::new(add));
        self
    }

    /// Allows `--mode dp`, for a model that says how its training step is split over devices.
    pub fn data_parallel(mut self) -> Self
    where
        M: ParallelStep,
    {
        self.data_parallel = Some(|devices, loaders, setup| {
            Ok(setup.apply(DpStrategy::new(devices, loaders.train.clone(), loaders.evaluated())?))
        });
        self
    }

    /// A model with the same initial parameters on every rank and device, from `--seed`.
    pub fn init(&self, init: impl FnOnce(&Device) -> M) -> M {
        self.context.init_module(self.args.seed, init)
    }
}
