//! Steps of one epoch on every rank, which are checked and reported once their totals are on the host.

use super::{
    Report, StepModel, StepReport, TrainInput, TrainedOutput,
    checkpoints::StepRequests,
    run::{Run, Stop},
    stragglers::BusyTime,
};
use crate::{
    Error,
    data::loader::ShardedBatches,
    ddp::engine::{BatchOutput, SynchronisedStep, UncheckedStep, first},
    gradient::timed,
    train::metric::{StepOutput, add_totals, check_totals, means},
};
use burn::data::dataloader::Progress;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::train::{LearnerEvent, TrainingItem};
use kernels::optim::together;
use std::{
    iter::Peekable,
    time::{Duration, Instant},
};
use tracing::info_span;

/// A launched step, whose totals are being copied to the host.
struct LaunchedStep {
    /// Report without loss and time.
    report: StepReport,
    lr: ModuleLearningRate,
    /// Number of samples of the epoch up to this step, over all ranks.
    done: usize,
    unchecked: UncheckedStep,
}

impl<M: StepModel> Run<'_, M> {
    /// Runs the remaining steps of the epoch. Returns whether the epoch is complete.
    ///
    /// On a GPU, a step is completed after the next one is launched, so that the GPU always has work. At a
    /// checkpoint, a stop and the end, all steps are complete.
    pub(super) fn train(&mut self) -> Result<bool, Stop> {
        let (settings, epoch, done) = (self.settings, self.position.epoch, self.position.done());
        let (steps, total) = (
            settings.train.steps_left(done).div_ceil(self.engine.options.grad_accum_steps),
            settings.train.samples(),
        );
        settings.observe(|observer| observer.epoch_started(epoch, steps, total.saturating_sub(done.samples)));
        self.event(LearnerEvent::StartSplit { epoch_number: epoch, total_items: total });
        let mut clock = Instant::now();
        let mut batches = settings.train.rest(epoch, done, &settings.device).peekable();
        let mut launched: Option<LaunchedStep> = None;
        while !self.finished() {
            let next = match self.train_step(&mut batches) {
                Ok(next) => next,
                Err(stop) => return Err(self.failed_after(launched, stop, &mut clock)),
            };
            let Some(next) = next else { break };
            let mut requests = StepRequests::default();
            if let Some(before) = launched.replace(next) {
                requests |= self.complete(before, &mut clock)?;
            }
            let every = settings.checkpoints.as_ref().and_then(|checkpoints| checkpoints.every);
            requests.save |= every.is_some_and(|n| self.position.step.is_multiple_of(n));
            let ends_round = self.after_local_step(requests)?;
            if let Some(step) =
                launched.take_if(|step| ends_round || requests.any() || step.unchecked.loss.is_ready())
            {
                requests |= self.complete(step, &mut clock)?;
            }
            if launched.is_none() {
                self.mark();
            }
            self.serve(requests, ends_round)?;
        }
        let requests = match launched {
            Some(last) => self.complete(last, &mut clock)?,
            None => StepRequests::default(),
        };
        self.mark();
        let in_round = self.round.as_ref().is_some_and(|round| round.outer.has_steps());
        self.serve(requests, in_round)?;
        if in_round {
            self.lap(&mut clock);
        }
        self.event(LearnerEvent::EndSplit(epoch));
        Ok(batches.peek().is_none())
    }

    /// With local SGD, counts a step and updates the model if other ranks' parameters have arrived. Returns whether a round
    /// ends.
    fn after_local_step(&mut self, requests: StepRequests) -> Result<bool, Stop> {
        let Some(round) = &mut self.round else { return Ok(false) };
        let (model, ends) = round.after_step(|| self.learner.model(), requests)?;
        if let Some(model) = model {
            self.learner.load_model(model.into_record());
        }
        Ok(ends)
    }

    /// Serves the requests after a step: with local SGD at the end of a round, those of all its steps and ranks.
    fn serve(&mut self, requests: StepRequests, ends_round: bool) -> Result<(), Stop> {
        let requests = match &mut self.round {
            None => requests,
            Some(round) => {
                round.requests |= requests;
                if !ends_round {
                    return self.settings.group.failure().map_or(Ok(()), |error| Err(error.into()));
                }
                let (model, requests) =
                    round.end(self.learner.model(), &mut self.position.totals, &self.settings.group)?;
                self.learner.load_model(model.into_record());
                requests
            }
        };
        if requests.stop {
            return Err(self.stop()?);
        }
        if requests.end {
            self.end_early();
        }
        if requests.save { self.keep() } else { Ok(()) }
    }

    /// Runs forward and backward over the batches of a step, averages the gradients, and updates the parameters.
    ///
    /// `None` at the end of the epoch, which all ranks reach at the same step.
    fn train_step(
        &mut self,
        batches: &mut Peekable<ShardedBatches<TrainInput<M>>>,
    ) -> Result<Option<LaunchedStep>, Stop> {
        let (settings, model) = (self.settings, self.learner.model());
        let (rank, ranks, waited) = (settings.group.rank(), settings.group.world_size(), self.time.data);
        let (control, mut busy) = (&mut self.control, BusyTime::default());
        if timed("wait for data", &mut self.time.data, || batches.peek().is_none()) {
            return Ok(None);
        }
        let _span = info_span!("step", step = self.engine.steps + 1).entered();
        self.engine.begin_step();
        loop {
            let Some(batch) = timed("wait for data", &mut self.time.data, || batches.next()) else {
                return Ok(None);
            };
            let batch = batch?;
            busy.data = self.time.data - waited;
            let samples = batch.samples;
            let interrupter = &self.components.interrupter;
            let computed = self.engine.batch(&model, batch, |scope, item| {
                let began = Instant::now();
                let output = (settings.compute)(&model, item, scope)?;
                busy.add_batch(began, scope.first_gradient());
                let item = &output.item;
                settings.callbacks.each(|callback| callback.on_train_batch(item, samples, control))?;
                let stop = interrupter.should_stop() || settings.stop_signal() > 0;
                let requests = StepRequests { stop, end: control.stop.is_some(), save: control.save };
                let totals = item.totals().inner();
                let flags = [requests.flags(), busy.values(rank, ranks)].concat();
                Ok(BatchOutput { grads: output.grads, totals, flags })
            })?;
            if let Some(step) = computed.step {
                control.save = false;
                return Ok(Some(self.optimize(model, step)?));
            }
        }
    }

    /// Runs the optimizer on the gradients of a step, and starts to read its totals.
    fn optimize(&mut self, model: M, step: SynchronisedStep) -> Result<LaunchedStep, Stop> {
        let SynchronisedStep { grads, unchecked, samples, batches, loss_scale } = step;
        let (step, skipped) = (self.engine.steps, self.engine.reducer.skipped());
        self.share_running_statistics(&model)?;
        self.settings.callbacks.each(|callback| callback.on_gradients(step, &model, &grads))?;
        // So that the optimizer can free the parameters that it replaces.
        drop(model);
        self.learner.lr_step();
        info_span!("optimizer").in_scope(|| together(|| self.learner.optimizer_step(grads)));
        // Not before, because live recovery takes the parameters for those of this step.
        self.position.step = step;
        self.position.samples += samples;
        self.position.batches += batches;
        if !skipped {
            self.share_parameters()?;
        }
        self.warn(loss_scale);
        self.position.skipped += usize::from(skipped);
        if let Some(average) = self.average.as_mut().filter(|_| !skipped) {
            average.update(&self.learner.model());
        }
        let report = StepReport {
            step,
            epoch: self.position.epoch,
            lr: self.learner.lr_current().base(),
            samples,
            loss_scale,
            skipped,
            ..StepReport::default()
        };
        let (done, lr) = (self.position.samples, self.learner.lr_current());
        Ok(LaunchedStep { report, lr, done, unchecked })
    }

    /// Adds the time since the last call, which `clock` has, to that of training, and returns it.
    fn lap(&mut self, clock: &mut Instant) -> Duration {
        let now = Instant::now();
        let lap = now - std::mem::replace(clock, now);
        self.position.seconds += lap.as_secs_f64();
        self.time.training += lap;
        lap
    }

    /// Waits for a step's totals, verifies and reports them. Returns the requests of all ranks, or with local SGD those of
    /// this rank.
    fn complete(&mut self, step: LaunchedStep, clock: &mut Instant) -> Result<StepRequests, Stop> {
        let LaunchedStep { mut report, lr, done, unchecked } = step;
        let averaged = unchecked.loss.samples();
        let (flags, totals) = self.engine.check(unchecked)?;
        let (requests, times) = flags.split_at(StepRequests::FLAGS);
        let requests = StepRequests::from_sums(requests);
        if self.round.is_none()
            && let Some(warning) = self.stragglers.update(report.step, times)
        {
            self.settings.observe(|observer| observer.warned(&warning));
        }
        check_totals::<TrainedOutput<M>>(&totals)?;
        let sums = match &mut self.round {
            Some(round) => &mut round.totals,
            None => &mut self.position.totals,
        };
        add_totals(sums, &totals);
        report.loss = first(&totals) / averaged.max(1) as f64;
        report.metrics = means::<TrainedOutput<M>>(&totals, averaged).into_iter().skip(1).collect();
        report.elapsed = self.lap(clock);
        self.settings.observe(|observer| observer.step_done(&report));
        if let Some(recovery) = &self.settings.recovery {
            recovery.reported(Report::Step(report.clone()));
        }
        let item = TrainedOutput::<M>::from_totals(&totals, averaged);
        let progress = Progress::new(done, self.settings.train.samples(), Some("items".into()));
        self.event(LearnerEvent::ProcessedItem(TrainingItem::new(
            item,
            progress,
            Some(report.step),
            Some(lr),
        )));
        Ok(requests)
    }

    /// Returns the error to report when a step after `launched` failed.
    ///
    /// The totals of `launched` are checked first, because a non-finite loss is the cause of later failures.
    fn failed_after(&mut self, launched: Option<LaunchedStep>, failure: Stop, clock: &mut Instant) -> Stop {
        match launched.map(|step| self.complete(step, clock)) {
            Some(Err(Stop::Failed(error @ Error::NonFinite { .. }))) => Stop::Failed(error),
            Some(_) | None => failure,
        }
    }

    /// Warns of parameters that only some ranks use, of the first skipped step, and of disabled overlap.
    fn warn(&mut self, loss_scale: Option<f32>) {
        let tell = |message: String| self.settings.observe(|observer| observer.warned(&message));
        if self.position.step == 1 {
            let unused: Vec<String> =
                self.engine.reducer.unused().map(|(path, ranks)| format!("{path} ({ranks} ranks)")).collect();
            if !unused.is_empty() {
                let unused = unused.join(", ");
                tell(format!("not all ranks used these parameters in step 1: {unused}"));
            }
        }
        if let (Some(scale), true, false) = (loss_scale, self.engine.reducer.skipped(), self.warned_of_skips)
        {
            self.warned_of_skips = true;
            let (step, next) = (self.position.step, self.engine.reducer.loss_scale());
            tell(format!(
                "step {step} is skipped, because its gradients overflow f16 at loss scale {scale}; the next scale is \
                 {next}"
            ));
        }
        if let (Some(reason), false) = (self.engine.reducer.fallback(), self.warned) {
            self.warned = true;
            tell(format!("gradients are synchronised after backward from now on: {reason}"));
        }
    }
}
