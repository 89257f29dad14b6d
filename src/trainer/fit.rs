//! `Trainer::fit`: runs training and evaluation.

#[cfg(feature = "cuda")]
use super::kernel_progress::KernelProgress;
use super::{
    Loaders, Trainer, find_lr,
    interruption::Interruption,
    prepare::{Resumed, ScratchFolder, check_groups, devices, prepared},
    progress::{Progress, print_header},
    strategy::{self, train_step},
    trained::{History, Trained},
};
use crate::{
    config::{Config, TrainerArgs},
    device::{faults, gigabytes},
    process::{auto_batch, console::print_line, stop},
    run::{EvaluatedSet, Output, RunFiles, tensorboard::GradientHistograms, weights},
};
use anyhow::{Context as _, Result, bail};
use burn::optim::{ModuleOptimizer, lr_scheduler::module_lr_scheduler::ModuleLrScheduler};
use burn::train::Learner;
use collective::{
    lr::{LrControl, LrSchedule},
    metric::StepOutput,
    module_state::require_trainable,
    strategy::{
        CheckpointSink, Checkpoints, MetricCallback, Observer, StepModel, StopRequest, TrainedOutput,
        ValidOutput,
    },
};
use std::sync::Arc;

impl<M: StepModel> Trainer<'_, M> {
    /// Trains and evaluates for the configured epochs and steps, and writes the run folder.
    ///
    /// A program may call it several times, for example for the folds of a cross-validation. With `--fast-dev-run`, it
    /// leaves no files.
    ///
    /// # Errors
    /// If ranks differ in settings or data, a checkpoint cannot be resumed, a file cannot be written, a device, the
    /// data loader or another rank fails, or the loss is not finite. With `--auto-batch`, the error of a device without
    /// memory makes [`launch`](crate::launch()) start all ranks again with half the batch.
    pub fn fit(
        self,
        model: M,
        optimizer: impl Into<ModuleOptimizer>,
        loaders: Loaders<M>,
    ) -> Result<Trained<M>> {
        let args = self.args;
        if !args.auto_batch {
            return self.train(model, optimizer.into(), loaders);
        }
        let device = self.context.local_device().to_string();
        let trained = faults::run(&device, || self.train(model, optimizer.into(), loaders));
        trained.map_err(|error| auto_batch::explain(error, args.batch_size, args.gradients.grad_accum_steps))
    }

    fn train(self, model: M, optimizer: ModuleOptimizer, loaders: Loaders<M>) -> Result<Trained<M>> {
        let Trainer { context, args, mut program, data_digest, callbacks, metrics, .. } = self;
        let Trainer { parallel_step, scheduler, lr_groups, head, finished, .. } = self;
        let (scratch, short) = ScratchFolder::for_run(args).unzip();
        let _scratch = scratch.filter(|_| context.is_main());
        let args = short.as_ref().unwrap_or(args);
        let (console, group, device) = (context.console(), context.group(), context.device());
        (program.train_samples, program.test_samples) = (loaders.train.samples(), loaders.test.samples());
        program.valid_samples = loaders.valid.as_ref().map_or(0, |valid| valid.samples());
        program.metrics = ValidOutput::<M>::metrics();
        program.metrics.extend(callbacks.iter().flat_map(|(metrics, _)| metrics.clone()));
        program.train_metrics = TrainedOutput::<M>::metrics();
        let mut config = Config::resolve(args, context, program);
        if args.print_config {
            if console.is_visible() {
                print_line(&serde_json::to_string_pretty(&config)?)?;
            }
            return Ok(Trained::without_training(model.valid()));
        }
        group.verify_settings(&config.settings()?)?;
        let digests = group.all_gather_object(&data_digest)?;
        if let Some(rank) = digests.iter().position(|digest| *digest != digests[0]) {
            bail!("rank {rank} does not have the data that rank 0 has; give all ranks the same data set");
        }
        loaders.require_samples()?;
        // All ranks have the same flags, metrics and parameters; one of them reports the error.
        let check = || {
            require_trainable(&model)?;
            let TrainerArgs { rate, gradients, valid_split, histograms, .. } = &config.args;
            if scheduler.is_some() && (rate.warmup_epochs > 0.0 || rate.lr_schedule != LrSchedule::Constant) {
                bail!("--lr-schedule and --warmup-epochs: this program has a scheduler; remove the flag");
            }
            if *valid_split > 0.0 && loaders.valid.is_none() {
                bail!("--valid-split {valid_split}: this program has no validation set");
            }
            if args.peak_tflops.is_some() && config.program.flops_per_sample.is_none() {
                bail!("--peak-tflops: this program does not name the FLOPs of a sample, which it needs");
            }
            if gradients.shard_optimizer && histograms.is_some() && group.world_size() > 1 {
                bail!("--histograms: with --shard-optimizer, no rank has all gradients; remove one of them");
            }
            config.monitored().and_then(|_| check_groups(&model, &lr_groups))
        };
        group.on_rank_zero(check).transpose()?;
        let (survived, live) = Interruption::survive(context, args, &mut config)?;
        let resumed = match survived {
            Some(survived) => survived,
            None => Resumed::find(&mut config, group, console)?,
        };
        args.gradients.precision.check(device)?;
        if let Some(path) = args.export.as_deref().filter(|_| context.is_main()) {
            weights::check_export(path).context("--export")?;
        }
        let model = prepared(model, &config, context, head.as_deref())?;
        let devices = devices(context, args, parallel_step.is_some())?;
        let strategy = parallel_step.unwrap_or(train_step)(context, devices, &loaders)?;
        if let Some(range) = args.find_lr.find_lr {
            let untrained = Trained::without_training(model.valid());
            let learner = Learner::new(model, optimizer, find_lr::schedule(range, &config));
            return find_lr::run(context, &config, &loaders, strategy, learner).map(|()| untrained);
        }
        let (lr, steps) = (LrControl::default(), loaders.train.steps());
        let schedule = match scheduler {
            Some(make) => make(config.lr_plan(steps), &lr)?,
            None => lr.schedule(config.schedule(steps)),
        };
        let memory = context.local_device().memory()?;

        // Nothing is written before every rank has passed its checks.
        group.barrier()?;
        let last_step = resumed.last_step(&config, &*loaders.train);
        let open = || Output::open(&config, resumed.found.as_ref(), last_step, context.began(), console);
        let output = context.is_main().then(open).transpose()?.map(Arc::new);
        let is_recovered = resumed.reports.is_some();
        if !is_recovered {
            print_header(console, &config, &context.why(), context.transport());
        }
        if let Some((warmup, steps)) = config.unfinished_warmup(loaders.train.steps()) {
            console.warn(&format!(
                "--warmup-epochs {}: the run ends after {steps} steps, before the warm-up of {}: the rate reaches {:.6} and not {:.6}",
                config.args.rate.warmup_epochs, warmup.warmup_steps, warmup.at(steps), warmup.target
            ));
        }
        context.local_device().advice().iter().for_each(|advice| console.warn(advice));
        if let Some((free, total)) = memory {
            let (free, total, device) = (gigabytes(free), gigabytes(total), context.local_device());
            console.print(&format!("memory    {free} of {total} free on {device}"));
        }
        if let Some(output) = output.as_ref().filter(|_| !is_recovered) {
            output.print_tracking_hints();
        }
        let style = args.progress.resolved(context.is_main());
        let history = Arc::new(History::default());
        let progress =
            Progress::new(style, console, config.args.epochs.begun(), EvaluatedSet::from_config(&config));
        let mut observers: Vec<Arc<dyn Observer>> = vec![Arc::new(progress), history.clone()];
        #[cfg(feature = "cuda")]
        if let Some(progress) = KernelProgress::start(context.local_device(), console) {
            observers.push(Arc::new(progress));
        }
        if let Some(output) = &output {
            observers.extend(output.observers());
        }

        let live = live.map(|live| live.begin(&resumed, output.as_deref(), &history, group)).transpose()?;
        let files = output
            .as_ref()
            .map(|output| RunFiles { folder: output.folder.path().into(), events: output.events.clone() });
        let mut callbacks: Vec<MetricCallback<M>> =
            callbacks.into_iter().map(|(metrics, make)| (metrics, make(files.as_ref()))).collect();
        if let Some(every) = args.histograms {
            let histograms = GradientHistograms::new(every, files.map(|files| files.events));
            callbacks.push((Vec::new(), Box::new(histograms)));
        }
        let load_best = args.checkpoints.load_best;
        let stop = Arc::new(StopRequest::new(stop::requested));
        let sink = output.clone().map(|output| output as Arc<dyn CheckpointSink>);
        let strategy = strategy
            .with_options(config.step_options())
            .with_observers(observers)
            .with_callbacks(callbacks)
            .with_test(loaders.valid.is_some().then(|| loaders.test.clone()))
            .with_checkpoints(Checkpoints { every: args.checkpoints.save_every, sink, load_best })
            .with_ema(args.ema)
            .with_peak_throughput(config.peak_throughput())
            .with_evaluation_batches(args.fast_dev_run)
            .with_max_steps(last_step)
            .with_resume(resumed.snapshot)
            .with_lr_control(lr.clone())
            .with_live_recovery(live.as_ref().map(|live| live.state.clone()))
            .with_stop(stop.clone());
        let schedules = lr_groups
            .into_iter()
            .fold(ModuleLrScheduler::new(schedule.clone()), |schedules, (group, factor)| {
                schedules.with_group(group, schedule.scaled(factor))
            });
        let learner = Learner::new(model, optimizer, schedules);
        let result = strategy::run(strategy, &loaders, learner, resumed.epochs, |training| {
            let training = metrics.into_iter().fold(training, |training, add| add(training));
            let renderer = style.renderer(training.interrupter());
            training.renderer(renderer)
        })
        .inspect_err(|_| {
            if let Some(live) = live {
                live.keep();
            }
        })?;
        let (epochs, test) = history.take();
        let is_complete = stop.signal().is_none();
        let trained = Trained { model: result.model, epochs, test, is_complete };
        // Lines that are printed while the dashboard has the screen are lost.
        drop(result.renderer);
        if let Some(signal) = stop.signal() {
            context.set_stop_signal(signal);
            output.map_or(Ok(()), |output| output.finish_stopped(signal))?;
            return Ok(trained);
        }
        let Some(output) = output else { return Ok(trained) };
        let summary = output.finish(&trained.model, context.transport())?;
        finished.into_iter().try_for_each(|act| act(output.folder.path(), &summary))?;
        if args.fast_dev_run.is_some() {
            console
                .print("fast dev run: training, validation, checkpoint and test work; its files are removed");
        }
        // Last, so that a failure leaves a complete run folder.
        if let Some(path) = &args.export {
            weights::save(&trained.model, path, "").context("--export")?;
        }
        Ok(trained)
    }
}
