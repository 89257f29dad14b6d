//! The training loop of a strategy on every rank: epochs, checks, checkpoints and coordinated stops.

use super::{
    EpochReport, ParallelStrategy, Position, RankTime, Report, RunControl, Snapshot, StepModel,
    TrainedOutput, ValidOutput, local_round::LocalRound, snapshot::Records, stragglers::Stragglers,
    weight_average::WeightAverage,
};
use crate::{Error, ReduceOp, ddp::engine::Engine, module_state, train::metric::means};
use burn::module::ParamGroup;
use burn::store::ModuleRecord;
use burn::train::{EventProcessorTraining, Learner, LearnerEvent, LearnerModel, TrainingComponents};
use std::time::{Duration, Instant};
use tracing::info_span;

/// Reason why a run ends before its last epoch.
pub(super) enum Stop {
    /// The group failed, or the replicas differ.
    Failed(Error),
    /// burn-train's interrupter was triggered on some rank.
    Interrupted,
    /// A rank's [`StopRequest`](super::StopRequest) returned this number.
    Requested(u8),
}

impl From<Error> for Stop {
    /// Without [`Error::Poisoned`], because a run reports one error, also if the group failed between two calls.
    fn from(error: Error) -> Self {
        Stop::Failed(error.cause().clone())
    }
}

/// One run in progress on one rank.
pub(super) struct Run<'a, M: LearnerModel> {
    pub settings: &'a ParallelStrategy<M>,
    pub learner: Learner<M>,
    pub components: TrainingComponents<M>,
    pub engine: Engine,
    /// Whether the user was warned that overlap is disabled.
    pub warned: bool,
    /// Whether the user was warned that steps are skipped.
    pub warned_of_skips: bool,
    pub position: Position,
    /// Time of this rank in the epoch in progress.
    pub time: RankTime,
    /// Requests of this rank's callbacks.
    pub control: RunControl,
    /// Whether a callback of any rank has ended training.
    pub stopped: bool,
    /// Moving average of the weights, which is evaluated in place of them.
    pub average: Option<WeightAverage>,
    /// The round in progress of local SGD.
    pub round: Option<LocalRound>,
    pub stragglers: Stragglers,
}

impl<M: StepModel> Run<'_, M> {
    /// Runs all remaining epochs. At the end, and after a stop, all checkpoints are stored.
    pub fn run(&mut self) -> Result<(), Stop> {
        let ended = self.epochs();
        match &ended {
            Ok(()) | Err(Stop::Interrupted | Stop::Requested(_)) => {
                self.settings.store(|sink| sink.flush())?;
            }
            Err(Stop::Failed(_)) => {}
        }
        ended
    }

    fn epochs(&mut self) -> Result<(), Stop> {
        self.share_model()?;
        self.round = LocalRound::first(&self.engine, self.learner.model(), self.settings.resume.as_ref())?;
        module_state::verify_equal(&self.learner.model(), &self.settings.group, "before the first step")?;
        self.mark();
        let Position { epoch, step, .. } = self.position;
        let mut last = EpochReport { epoch, step, ..EpochReport::default() };
        while self.position.epoch <= self.components.num_epochs
            && !(self.position.evaluated && self.finished())
        {
            self.position.evaluated = false;
            let (began, earlier) = (Instant::now(), self.position.seconds);
            let complete = self.train()?;
            let ranks = self.rank_times()?;
            let Position { step, epoch, samples, seconds, skipped, .. } = self.position;
            let digest = self.verify_replicas(&format!("after epoch {epoch}"))?;
            let valid = info_span!("validation").in_scope(|| self.evaluate(epoch))?;
            let mut report = EpochReport {
                epoch,
                step,
                train: means::<TrainedOutput<M>>(&self.position.totals, samples),
                train_samples: samples,
                metrics: means::<ValidOutput<M>>(&valid.sums, valid.samples),
                valid_samples: valid.samples,
                logged: self.settings.utilisation(samples, seconds).into_iter().collect(),
                train_time: Duration::from_secs_f64(seconds),
                elapsed: Duration::from_secs_f64(earlier) + began.elapsed(),
                digest,
                ranks,
                skipped_steps: skipped,
                loss_scale: self.engine.reducer.scaler_state().map(|(scale, _)| scale),
            };
            let is_last = self.settings.test.is_none();
            self.settings.callbacks.join(&mut report, &self.settings.group, is_last)?;
            self.settings.observe(|observer| observer.epoch_done(&report));
            if let Some(recovery) = &self.settings.recovery {
                recovery.reported(Report::Epoch(report.clone()));
            }
            let control = &mut self.control;
            self.settings.callbacks.each(|callback| callback.epoch_done(&report, control))?;
            if let Some(sink) = self.settings.sink() {
                sink.epoch_done(&report, control);
            }
            self.change_lr()?;
            if complete {
                self.position = Position { step, ..Position::start() };
                self.position.epoch = epoch + 1;
            }
            self.position.evaluated = true;
            let over = self.end_of_epoch(&report)?;
            self.mark();
            last = report;
            if over {
                break;
            }
        }
        self.load_best()?;
        self.test(last)
    }

    /// The model that is evaluated and returned.
    pub fn evaluated_model(&self) -> M {
        let model = self.learner.model();
        match &self.average {
            Some(average) => average.applied(model),
            None => model,
        }
    }

    /// Loads the best checkpoint, if that is requested.
    fn load_best(&mut self) -> Result<(), Stop> {
        let settings = self.settings;
        if settings.checkpoints.as_ref().is_none_or(|checkpoints| !checkpoints.load_best) {
            return Ok(());
        }
        let mut best = None;
        settings.group.run_on(0, || match settings.sink().map(|sink| sink.best()) {
            Some(found) => found.map(|found| best = found),
            None => Ok(()),
        })?;
        let Some(best) = Snapshot::share(best, &settings.group)? else { return Ok(()) };
        best.apply(&mut self.learner)?;
        best.apply_optimizer(&mut self.learner, &self.engine.reducer)?;
        let average = |decay| WeightAverage::new(decay, &self.learner.model(), Some(&best));
        self.average = settings.ema.map(average).transpose()?;
        settings.observe(|observer| {
            observer.noted(&format!("loaded the best checkpoint, of step {}", best.position.step))
        });
        Ok(())
    }

    /// Collects each rank's time in the finished epoch.
    fn rank_times(&mut self) -> Result<Vec<RankTime>, Stop> {
        let outer = self.round.as_mut().map_or(Duration::ZERO, |round| round.outer.reducer.take_waited());
        let gradients = self.engine.reducer.take_waited() + outer;
        let time = RankTime { gradients, ..std::mem::take(&mut self.time) };
        Ok(self.settings.group.all_gather_object(&time)?)
    }

    /// Takes a checkpoint and returns rank 0's decision whether to end before the last epoch.
    fn end_of_epoch(&mut self, report: &EpochReport) -> Result<bool, Stop> {
        self.event(LearnerEvent::EndEpoch(report.epoch));
        let settings = self.settings;
        let Self { components: parts, learner, .. } = self;
        parts.interrupter.fail_on_error(parts.event_processor.flush());
        let mut over = false;
        if settings.group.rank() == 0 {
            if let Some(checkpointer) = &mut parts.checkpointer {
                checkpointer.checkpoint(learner, report.epoch, &parts.event_store);
            }
            if let Some(early) = &mut parts.early_stopping {
                over = early.should_stop(report.epoch, &parts.event_store);
            }
        }
        let mut votes = [u8::from(over), u8::from(self.control.stop.is_some()), settings.stop_signal()];
        settings.group.all_reduce(&mut votes, ReduceOp::Max)?;
        self.control.save = false;
        if votes[1] > 0 && report.epoch < self.components.num_epochs {
            self.end_early();
        }
        self.keep()?;
        match votes {
            [over, ended, 0] => Ok(over + ended > 0),
            [.., signal] => Err(Stop::Requested(signal)),
        }
    }

    /// Ends training after the step in progress, at the request of a callback.
    pub(super) fn end_early(&mut self) {
        if !std::mem::replace(&mut self.stopped, true) {
            let reason = self.control.stop.as_deref().unwrap_or("a callback of another rank");
            self.settings.observe(|observer| observer.noted(&format!("stopped early: {reason}")));
        }
    }

    /// Applies rank 0's request to change the learning rate, on all ranks.
    fn change_lr(&mut self) -> Result<(), Stop> {
        let settings = self.settings;
        let requested = self.control.lr_factor.take();
        let Some(control) = &settings.lr_control else {
            return match requested {
                Some(_) => Err(Error::Invalid(
                    "a callback changes the learning rate, but the strategy has no LrControl; add with_lr_control"
                        .into(),
                )
                .into()),
                None => Ok(()),
            };
        };
        let mut factor = [control.factor() * requested.unwrap_or(1.0)];
        settings.group.broadcast(&mut factor, 0)?;
        if control.factor() != factor[0] {
            let epoch = self.position.epoch;
            settings.observe(|observer| {
                observer.noted(&format!("learning rate x {} after epoch {epoch}", factor[0]))
            });
            control.set_factor(factor[0]);
        }
        Ok(())
    }

    /// Determines the reason of a stop that some rank requested, and takes a checkpoint.
    pub(super) fn stop(&mut self) -> Result<Stop, Stop> {
        let mut signal = [self.settings.stop_signal()];
        self.settings.group.all_reduce(&mut signal, ReduceOp::Max)?;
        match signal {
            [0] => Ok(Stop::Interrupted),
            [signal] => {
                self.keep()?;
                Ok(Stop::Requested(signal))
            }
        }
    }

    /// Takes a checkpoint, if enabled. All ranks wait until rank 0 has the state.
    pub(super) fn keep(&mut self) -> Result<(), Stop> {
        let settings = self.settings;
        if settings.checkpoints.is_none() {
            return Ok(());
        }
        let _span = info_span!("checkpoint").entered();
        let snapshot = self.snapshot();
        if settings.sink().is_none() {
            snapshot.as_ref().map_err(Error::clone)?;
        }
        settings.store(|sink| match snapshot {
            Ok(snapshot) => snapshot.map_or(Ok(()), |snapshot| sink.save(snapshot)),
            Err(error) => Err(error.to_string()),
        })?;
        if let Some(recovery) = &settings.recovery {
            recovery.saved();
        }
        Ok(())
    }

    /// The state of the run with what each rank has of it, on the rank that stores it. The other ranks only take part.
    fn snapshot(&self) -> Result<Option<Snapshot>, Error> {
        let (reducer, is_stored) = (&self.engine.reducer, self.settings.sink().is_some());
        if !is_stored && !reducer.is_sharded() && self.round.is_none() {
            return Ok(None);
        }
        let mut records = self.records()?;
        records.optimizer = reducer.consolidate(records.optimizer)?;
        if !is_stored && self.round.is_none() {
            return Ok(None);
        }
        // After the records, for which BatchNorm's running statistics were updated.
        let mut snapshot = Snapshot::take(records, self.position(), self.averaged(self.learner.model()))?;
        if let Some(round) = &self.round {
            round.save(self.learner.model(), &mut snapshot)?;
        }
        Ok(Some(snapshot))
    }

    pub(super) fn records(&self) -> Result<Records, Error> {
        Records::of(&self.learner, &self.components.event_store, self.position.epoch)
    }

    /// The record of `model` with the average of its weights, if there is one.
    pub(super) fn averaged(&self, model: M) -> Option<ModuleRecord> {
        self.average.as_ref().map(|average| average.applied(model).into_record())
    }

    /// The position with the loss scale.
    pub(super) fn position(&self) -> Position {
        Position { loss_scale: self.engine.reducer.scaler_state(), ..self.position.clone() }
    }

    pub(super) fn finished(&self) -> bool {
        self.stopped || self.settings.max_steps.is_some_and(|max| self.position.step >= max)
    }

    /// Broadcasts rank 0's parameters and buffers.
    fn share_model(&mut self) -> Result<(), Stop> {
        let model = module_state::broadcast(self.learner.model(), &self.settings.group, 0)?;
        self.replace_model(model);
        Ok(())
    }

    /// Verifies that all replicas are equal, and broadcasts rank 0's BatchNorm statistics, which differ between ranks
    /// as in PyTorch.
    fn verify_replicas(&mut self, when: &str) -> Result<String, Stop> {
        let (model, digest) =
            module_state::verify_and_share_buffers(self.learner.model(), &self.settings.group, 0, when)?;
        self.replace_model(model);
        Ok(digest)
    }

    /// Loads the parameters that other ranks have updated, if the optimizer's state is divided.
    pub(super) fn share_parameters(&mut self) -> Result<(), Stop> {
        let reducer = &self.engine.reducer;
        if reducer.is_sharded() {
            let model = reducer.share_parameters(self.learner.model())?;
            // burn-train's learner takes its model from records only.
            let record = model.into_record_group(ParamGroup::from_ids(reducer.received()));
            self.learner.load_model(record.allow_partial(true));
        }
        Ok(())
    }

    /// Rank 0's model, which the other ranks receive.
    fn replace_model(&mut self, model: M) {
        if self.settings.group.rank() > 0 {
            self.learner.load_model(model.into_record());
        }
    }

    pub(super) fn event(&mut self, event: LearnerEvent<TrainedOutput<M>>) {
        let result = self.components.event_processor.process_train(event);
        self.components.interrupter.fail_on_error(result);
    }

    pub(super) fn valid_event(&mut self, event: LearnerEvent<ValidOutput<M>>) {
        let result = self.components.event_processor.process_valid(event);
        self.components.interrupter.fail_on_error(result);
    }
}
