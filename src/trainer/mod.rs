//! `Trainer`: a complete training program for any Burn model, configured by flags.

mod console_renderer;
mod find_lr;
mod fit;
mod interruption;
#[cfg(feature = "cuda")]
mod kernel_progress;
mod loaders;
mod prepare;
pub mod progress;
mod strategy;
mod trained;

pub use collective::strategy::NoopRenderer;
pub use console_renderer::ConsoleRenderer;
pub use loaders::Loaders;
pub use trained::Trained;

use crate::{
    config::{DatasetName, ProgramSettings, TrainerArgs, config_file, learning_rate::LrPlan},
    context::{self, Context},
    process::exit,
    run::{RunFiles, Summary, mlflow::Server, weights},
};
use anyhow::{Context as _, Result, anyhow};
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::ParamGroup;
use burn::tensor::Device;
use burn::train::{LearnerModel, SupervisedTraining};
use clap::Parser;
use collective::{
    dp::ParallelStep,
    lr::{ControlledLr, LrControl},
    metric::MetricInfo,
    strategy::{Callback, StepModel},
};
use serde::Serialize;
use serde_json::Value;
use std::{path::Path, process::ExitCode};
use strategy::{MakeStrategy, parallel_step};

/// Parses the command line, including `--config` files, and runs `program` on every rank.
///
/// `trainer` returns the [`TrainerArgs`] of `P`. Returns the exit code for `main`. Errors are printed once. See the
/// [example](crate).
pub fn main<P, F>(trainer: fn(&P) -> &TrainerArgs, mut program: F) -> ExitCode
where
    P: Parser,
    F: FnMut(&Context, &P) -> Result<()>,
{
    exit::report(
        config_file::parse::<P>(None)
            .and_then(|args| start(trainer(&args), || Ok(()), |context| program(context, &args))),
    )
}

/// Validates parsed flags and runs `program` on every rank.
///
/// `check` validates the flags of the program.
///
/// # Errors
/// If flags are invalid, a rank cannot be started, or `program` fails on this rank.
pub fn start(
    args: &TrainerArgs,
    check: impl FnOnce() -> Result<()>,
    program: impl FnMut(&Context) -> Result<()>,
) -> Result<ExitCode> {
    // Under a launcher, all ranks have the same flags; rank 0 alone reports errors.
    if args.context.world.environment()?.is_none_or(|environment| environment.is_main()) {
        args.check()?;
        args.mlflow.as_deref().map_or(Ok(()), Server::check).context("--mlflow")?;
        args.export.as_deref().map_or(Ok(()), weights::check_export).context("--export")?;
        check()?;
    }
    context::start(&args.context, program)
}

type MakeCallback<M> = Box<dyn FnOnce(Option<&RunFiles>) -> Box<dyn Callback<M>>>;
type Metrics<M> = Box<dyn FnOnce(SupervisedTraining<M>) -> SupervisedTraining<M>>;
type MakeScheduler = Box<dyn FnOnce(LrPlan, &LrControl) -> Result<ControlledLr>>;
type Finished<'a> = Box<dyn FnOnce(&Path, &Summary) -> Result<()> + 'a>;

/// Trainer of a model, configured by flags. See the [example](crate).
pub struct Trainer<'a, M: LearnerModel> {
    context: &'a Context,
    args: &'a TrainerArgs,
    program: ProgramSettings,
    data_digest: Option<String>,
    callbacks: Vec<(Vec<MetricInfo>, MakeCallback<M>)>,
    metrics: Vec<Metrics<M>>,
    parallel_step: Option<MakeStrategy<M>>,
    /// The program's scheduler.
    scheduler: Option<MakeScheduler>,
    /// Factors of the learning rate for groups of parameters.
    lr_groups: Vec<(ParamGroup, f64)>,
    /// Name of a layer that `--init-from` may leave out.
    head: Option<String>,
    finished: Vec<Finished<'a>>,
}

impl<'a, M: StepModel> Trainer<'a, M> {
    /// Creates a trainer for this rank.
    pub fn new(context: &'a Context, args: &'a TrainerArgs) -> Self {
        Self {
            context,
            args,
            program: ProgramSettings::default(),
            data_digest: None,
            callbacks: Vec::new(),
            metrics: Vec::new(),
            parallel_step: None,
            scheduler: None,
            lr_groups: Vec::new(),
            head: None,
            finished: Vec::new(),
        }
    }

    /// Sets name and source of the data set, for display.
    pub fn dataset(mut self, name: &str, source: &str) -> Self {
        self.program.dataset = Some(DatasetName { name: name.into(), source: source.into() });
        self
    }

    /// Records a setting of the program, such as a hidden size, in `config.json`.
    ///
    /// It must be equal on all ranks, and a checkpoint is resumed only with the same value. `name` is the flag without
    /// leading dashes.
    pub fn must_match(self, name: &str, value: impl Serialize) -> Self {
        self.note(&name.replace('-', "_"), &value).must_match_unrecorded(&format!("--{name}"), value)
    }

    /// Records the fields of a struct of flags as [`must_match`](Self::must_match) does.
    pub fn must_match_fields(self, fields: &impl Serialize) -> Self {
        let fields = serde_json::to_value(fields).unwrap_or_default();
        let fields = fields.as_object().into_iter().flatten();
        fields.fold(self, |trainer, (name, value)| trainer.must_match(&name.replace('_', "-"), value))
    }

    /// Records a value in `config.json` that does not directly determine the result of the run.
    pub fn note(mut self, name: &str, value: impl Serialize) -> Self {
        // Values that JSON does not support, such as NaN, become null.
        self.program.own.insert(name.into(), serde_json::to_value(value).unwrap_or_default());
        self
    }

    /// Sets the floating-point operations of forward and backward of a sample.
    ///
    /// If the device's peak is known, or given with `--peak-tflops`, its utilisation is logged after every epoch. Usually,
    /// only matrix products and convolutions are counted: 2 operations per weight and use in forward, and twice as many in
    /// backward.
    pub fn flops_per_sample(mut self, flops: f64) -> Self {
        self.program.flops_per_sample = Some(flops);
        self
    }

    /// Allows resuming a checkpoint only with the same value, without recording it in `config.json`.
    pub fn must_match_unrecorded(mut self, what: &str, value: impl Serialize) -> Self {
        self.program.identity.insert(what.into(), serde_json::to_value(value).unwrap_or_default());
        self
    }

    /// Verifies by a digest that all ranks, and a resumed checkpoint, use the same data.
    ///
    /// `what` names the digest in errors and contains the flag that selects the data.
    pub fn data_digest(mut self, what: &str, digest: String) -> Self {
        self.data_digest = Some(digest.clone());
        self.must_match_unrecorded(what, digest)
    }

    /// Records the resolved value of a flag, so that `--config` reproduces the run.
    pub fn resolved_flag(mut self, flag: &str, value: impl Into<Value>) -> Self {
        self.program.resolved_flags.insert(flag.into(), value.into());
        self
    }

    /// Adds a callback. `make` receives the files of the run on rank 0.
    pub fn callback<C>(self, make: impl FnOnce(Option<&RunFiles>) -> C + 'static) -> Self
    where
        C: Callback<M> + 'static,
    {
        self.metric_callback([], make)
    }

    /// Adds a callback that computes these metrics after every evaluation, which `--monitor` accepts.
    ///
    /// [`Callback::evaluation_done`] returns a number with the name of each.
    pub fn metric_callback<C>(
        mut self,
        metrics: impl Into<Vec<MetricInfo>>,
        make: impl FnOnce(Option<&RunFiles>) -> C + 'static,
    ) -> Self
    where
        C: Callback<M> + 'static,
    {
        self.callbacks.push((metrics.into(), Box::new(|files| Box::new(make(files)))));
        self
    }

    /// Configures burn-train's `SupervisedTraining`, for example with metrics for the dashboard.
    pub fn learner(
        mut self,
        add: impl FnOnce(SupervisedTraining<M>) -> SupervisedTraining<M> + 'static,
    ) -> Self {
        self.metrics.push(Box::new(add));
        self
    }

    /// Uses a scheduler of the program in place of `--lr-schedule`: one of Burn, an
    /// [`FnLr`](collective::lr::FnLr), or any other `LrScheduler`.
    ///
    /// It is stepped once per optimizer step, and its record is part of every checkpoint. Of a `ModuleLrScheduler`, only the
    /// base schedule counts; for groups of parameters, use [`lr_group`](Self::lr_group).
    pub fn lr_scheduler<S: Into<ModuleLrScheduler>>(
        mut self,
        make: impl FnOnce(LrPlan) -> Result<S, String> + 'static,
    ) -> Self {
        self.scheduler = Some(Box::new(|plan, control| {
            let schedule = make(plan).map_err(|reason| anyhow!("the learning-rate scheduler: {reason}"))?;
            Ok(control.schedule(schedule))
        }));
        self.must_match_unrecorded("the learning-rate scheduler", std::any::type_name::<S>())
    }

    /// Multiplies the learning rate of a group of parameters by `factor`. Of several groups, the last one counts.
    ///
    /// A group without parameters is an error of [`fit`](Self::fit).
    pub fn lr_group(mut self, group: ParamGroup, factor: f64) -> Self {
        self.lr_groups.push((group, factor));
        self
    }

    /// Keeps the new parameters of the layer `name` if those of `--init-from` have another shape, and prints that.
    ///
    /// It is the last layer of a classifier, which has another shape for other classes.
    pub fn head(mut self, name: &str) -> Self {
        self.head = Some(name.into());
        self
    }

    /// Registers the model's [`ParallelStep`], which `--mode dp` needs.
    ///
    /// With `--precision bf16` or `f16`, every mode then runs it in place of the model's `TrainStep`, and casts the
    /// batch, the outputs and the loss: see [`precision`](collective::precision).
    pub fn data_parallel(mut self) -> Self
    where
        M: ParallelStep,
    {
        self.parallel_step = Some(parallel_step);
        self
    }

    /// Runs `act` with the run folder and its summary on rank 0 after a completed run, but not after one stopped by a
    /// signal.
    pub fn finished(mut self, act: impl FnOnce(&Path, &Summary) -> Result<()> + 'a) -> Self {
        self.finished.push(Box::new(act));
        self
    }

    /// Initialises a model from `--seed`, with the same parameters on every rank and device.
    pub fn init(&self, init: impl FnOnce(&Device) -> M) -> M {
        self.context.init_module(self.args.seed, init)
    }
}
