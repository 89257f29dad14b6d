//! `Trainer`: the whole of a training program for any Burn model. Flags in, a run folder out.

pub mod args;
pub mod config;
pub mod config_file;
pub mod gradients;
#[cfg(feature = "cuda")]
mod kernel_progress;
pub mod learning_rate;
mod loaders;
mod prepare;
pub mod progress;
mod resumed;
mod strategy;
pub mod values;

pub use args::TrainerArgs;
pub use collective::strategy::NoopRenderer;
pub use config::{Config, DatasetName};

#[cfg(feature = "cuda")]
use crate::trainer::kernel_progress::KernelProgress;
use crate::{
    context::{self, Context},
    process::{exit, stop},
    run::{
        checkpoint::Monitor,
        tensorboard::{EventLog, GradientHistograms},
    },
};
use anyhow::{Result, bail};
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use burn::train::{
    Learner, LearnerModel, SupervisedTraining, TrainingStrategy, logger::InMemoryMetricLogger,
};
use clap::Parser;
use collective::{
    data_parallel::{DataParallelConfig, ParallelStep},
    loader::DistributedLoader,
    metric::StepOutput,
    strategy::{
        Callback, Checkpoints, DdpStrategy, DpStrategy, Observer, StopRequest, TrainInput, TrainedOutput,
        ValidInput, ValidOutput, collective_error,
    },
};
use config::Resolved;
use prepare::{devices, prepared};
use progress::{Progress, Style, print_header};
use resumed::Resumed;
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
type MakeDp<M> = fn(DataParallelConfig, Loaders<M>, Setup<'_, M>) -> Result<TrainingStrategy<M>>;

/// The training and the test loader.
struct Loaders<M: LearnerModel> {
    train: Arc<dyn DistributedLoader<TrainInput<M>>>,
    test: Arc<dyn DistributedLoader<ValidInput<M>>>,
}

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

    /// Adds a callback, which gets the files of the run on rank 0.
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
        self.data_parallel = Some(|devices, Loaders { train, test }, setup| {
            Ok(setup.apply(DpStrategy::new(devices, train, test)?))
        });
        self
    }

    /// A model with the same initial parameters on every rank and device, from `--seed`.
    pub fn init(&self, init: impl FnOnce(&Device) -> M) -> M {
        self.context.init_module(self.args.seed, init)
    }

    /// Trains and evaluates until the flags end the run, and writes its files.
    ///
    /// # Errors
    /// If ranks differ in settings, a checkpoint cannot be resumed, a file cannot be written, the data, a device or
    /// another rank fails, or the loss is not finite.
    pub fn fit<L, V>(
        self,
        model: M,
        optimizer: impl Into<ModuleOptimizer>,
        train: Arc<L>,
        test: Arc<V>,
    ) -> Result<()>
    where
        L: DistributedLoader<TrainInput<M>> + 'static,
        V: DistributedLoader<ValidInput<M>> + 'static,
    {
        let Trainer { context, args, mut resolved, identity, data_digest, callbacks, metrics, data_parallel } =
            self;
        let (console, group, device) = (context.console(), context.group(), context.device());
        (resolved.train_samples, resolved.test_samples) = (train.samples(), test.samples());
        let mut config = Config::resolve(args, context, resolved);
        if args.print_config {
            console.say(&serde_json::to_string_pretty(&config)?);
            return Ok(());
        }
        group.verify_settings(&config.settings()?)?;
        let digests = group.all_gather_object(&data_digest)?;
        if let Some(rank) = digests.iter().position(|digest| *digest != digests[0]) {
            bail!("rank {rank} does not have the data that rank 0 has; give all ranks the same data set");
        }
        if config.checkpoints.monitor == Monitor::Accuracy && !ValidOutput::<M>::names().contains(&"accuracy")
        {
            bail!("--monitor accuracy: this model is not a classifier; use --monitor loss");
        }

        let resumed = Resumed::find(args, &mut config, identity, group, console)?;
        args.gradients.precision.check(device)?;
        let model = prepared(model, &config, context, args.no_strict)?;
        let devices = devices(context, args, data_parallel.is_some())?;
        let memory = context.local_device().memory()?;

        // Nothing is written before every rank has passed its checks.
        group.barrier()?;
        let output = context.is_main().then(|| resumed.open(args, &config, context.began())).transpose()?;
        print_header(console, &config, &context.why(), context.transport());
        if let Some((warmup, steps)) = config.unfinished_warmup(train.steps()) {
            console.warn(&format!(
                "--warmup-epochs {}: the run ends after {steps} steps, before the warm-up of {}: the rate reaches {:.6} and not {:.6}",
                config.rate.warmup_epochs, warmup.warmup_steps, warmup.at(steps), warmup.target
            ));
        }
        context.local_device().advice().iter().for_each(|advice| console.warn(advice));
        if let Some(memory) = memory {
            console.say(&format!("memory    {memory}"));
        }
        if let Some(output) = &output {
            output.say_watched(console);
        }
        let style = Style::choose(args.progress, context.is_main());
        let mut observers: Vec<Arc<dyn Observer>> =
            vec![Arc::new(Progress::new(style, console, config.epochs.begun()))];
        #[cfg(feature = "cuda")]
        if let Some(progress) = KernelProgress::start(context.local_device(), console) {
            observers.push(Arc::new(progress));
        }
        if let Some(output) = &output {
            observers.extend([output.log.clone() as Arc<dyn Observer>, output.events.clone()]);
        }

        let files = output
            .as_ref()
            .map(|output| RunFiles { folder: output.folder.path().into(), events: output.events.clone() });
        let stop = Arc::new(StopRequest::new(stop::asked));
        let setup = Setup {
            observers,
            max_steps: resumed.last_step(&config, &*train),
            snapshot: resumed.snapshot,
            stop: stop.clone(),
            callbacks: callbacks.into_iter().map(|make| make(files.as_ref())).collect(),
            histograms: args
                .histograms
                .map(|every| GradientHistograms::new(every, files.map(|files| files.events))),
            checkpoints: Checkpoints {
                every: args.checkpoints.save_every,
                sink: output.as_ref().map(|output| output.keeper.clone()),
            },
            args,
        };
        let loaders = Loaders { train: train.clone(), test: test.clone() };
        let strategy = match data_parallel.zip(devices) {
            Some((make, devices)) => make(devices, loaders, setup)?,
            None => setup.apply(DdpStrategy::new(group.clone(), device, loaders.train, loaders.test)),
        };

        let schedule = config.schedule(train.steps());
        let training = SupervisedTraining::<M>::new(".", train, test)
            .with_metric_logger(InMemoryMetricLogger::default())
            .with_application_logger(None)
            .num_epochs(resumed.epochs);
        let training = metrics.into_iter().fold(training, |training, add| add(training));
        let renderer = style.renderer(training.interrupter());
        let learner = Learner::new(model, optimizer.into(), schedule);
        let during_training = context.signals().training_begins();
        let result = training.renderer(renderer).with_training_strategy(strategy).launch(learner);
        drop(during_training);

        if let Some(failure) = collective_error(&result) {
            return Err(failure.clone().into());
        }
        if let Some(error) = result.error {
            bail!("training stopped: {error}");
        }
        if let Some(signal) = stop.agreed() {
            context.stopped_by(signal);
            return output.map_or(Ok(()), |output| output.say_stopped(signal, console));
        }
        let transport = context.transport();
        output.map_or(Ok(()), |output| output.finish(result.model, &config, transport, console))
    }
}
