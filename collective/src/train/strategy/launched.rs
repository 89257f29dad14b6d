//! Launched steps; checks and reports to observers and metrics once their totals are on the host.

use super::{
    Report, StepModel, StepReport, TrainedOutput,
    checkpoints::StepRequests,
    run::{Run, Stop},
};
use crate::{
    Error,
    ddp::engine::{UncheckedStep, first},
    train::metric::{StepOutput, add_totals, check_totals, means},
};
use burn::data::dataloader::Progress;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::train::{LearnerEvent, TrainingItem};
use std::time::{Duration, Instant};

/// A launched step, whose totals are being copied to the host.
pub(super) struct LaunchedStep {
    /// Report without loss and time.
    pub report: StepReport,
    pub lr: ModuleLearningRate,
    /// Number of samples of the epoch up to this step, over all ranks.
    pub done: usize,
    pub unchecked: UncheckedStep,
}

impl<M: StepModel> Run<'_, M> {
    /// Adds the time since the last call, which `clock` has, to that of training, and returns it.
    pub(super) fn lap(&mut self, clock: &mut Instant) -> Duration {
        let now = Instant::now();
        let lap = now - std::mem::replace(clock, now);
        self.position.seconds += lap.as_secs_f64();
        self.time.training += lap;
        lap
    }

    /// Waits for a step's totals, verifies and reports them. Returns the requests of all ranks, or with local SGD those of
    /// this rank.
    pub(super) fn complete(&mut self, step: LaunchedStep, clock: &mut Instant) -> Result<StepRequests, Stop> {
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
    pub(super) fn failed_after(
        &mut self,
        launched: Option<LaunchedStep>,
        failure: Stop,
        clock: &mut Instant,
    ) -> Stop {
        match launched.map(|step| self.complete(step, clock)) {
            Some(Err(Stop::Failed(error @ Error::NonFinite { .. }))) => Stop::Failed(error),
            Some(_) | None => failure,
        }
    }
}
