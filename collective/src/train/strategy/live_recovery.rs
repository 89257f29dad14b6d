//! State of a run whose group has failed, so that the run continues in a new group without a restart.
//!
//! The state is that after the last complete optimizer step. An interrupted step has changed nothing but buffers such as
//! BatchNorm's running statistics, which [`LiveRecovery`] keeps from before the step. The step is computed again.
//! Running statistics that are not synchronised differ between ranks, and rank 0's count, so every rank keeps those.

use super::{EpochReport, Observer, Position, Snapshot, StepModel, StepReport, run::Run};
use crate::{
    ProcessGroup, Result,
    device_error::read_data,
    module_state::{broadcast_data, float_params},
    parameters::{TensorMap, replace, reshaped, values},
};
use burn::tensor::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A report that observers of a run have received.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Report {
    /// A completed optimizer step.
    Step(StepReport),
    /// A completed and evaluated epoch.
    Epoch(EpochReport),
}

impl Report {
    /// Calls the method of `observer` for this report.
    pub fn send_to(&self, observer: &dyn Observer) {
        match self {
            Report::Step(report) => observer.step_done(report),
            Report::Epoch(report) => observer.epoch_done(report),
        }
    }
}

/// State of a run at a rank that has survived the failure of its group.
#[derive(Clone, Debug)]
pub struct LiveState {
    /// State after the last complete optimizer step.
    pub snapshot: Snapshot,
    /// Reports of the steps since the last checkpoint that is certainly stored, and of all epochs of this process.
    pub reports: Vec<Report>,
}

impl LiveState {
    /// Progress of the run, for comparisons.
    pub fn progress(position: &Position) -> (usize, usize, bool) {
        (position.step, position.epoch, position.evaluated)
    }

    /// Gives every rank the state of the rank that has progressed most; `None` if no rank has a state. Every rank must
    /// call it.
    ///
    /// The replicas differ by at most one optimizer step, because every step needs all ranks.
    ///
    /// # Errors
    /// If the group fails.
    pub fn share(own: Option<Self>, group: &ProcessGroup) -> Result<Option<Self>> {
        let progress = own.as_ref().map(|own| Self::progress(&own.snapshot.position));
        let all = group.all_gather_object(&progress)?;
        let Some(best) = all.iter().flatten().max().copied() else { return Ok(None) };
        let root = all.iter().position(|progress| *progress == Some(best)).unwrap_or(0);
        let (snapshot, reports) = own.map(|own| (own.snapshot, own.reports)).unzip();
        let reports = group.broadcast_object(&reports.unwrap_or_default(), root)?;
        let snapshot = Snapshot::share_from(snapshot, group, root)?;
        Ok(snapshot.map(|snapshot| Self { snapshot, reports }))
    }
}

/// Keeps what is needed to continue a run in a new group: see
/// [`with_live_recovery`](super::ParallelStrategy::with_live_recovery).
#[derive(Default)]
pub struct LiveRecovery(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    reports: Vec<Report>,
    /// Number of the reports that the last checkpoint contains, which may not be stored yet.
    in_checkpoint: usize,
    boundary: Option<Boundary>,
    failed: Option<LiveState>,
    /// BatchNorm's running statistics of rank 0 in the last step, by identity.
    running: TensorMap,
    /// Whether the module has no buffers, once that is known.
    is_without_buffers: bool,
}

/// What is not in the learner of the state between two optimizer steps.
struct Boundary {
    position: Position,
    /// Buffers by identity.
    buffers: TensorMap,
    /// Number of reports.
    reports: usize,
}

impl LiveRecovery {
    /// Continues a run that has made these reports.
    pub fn new(reports: Vec<Report>) -> Self {
        Self(Mutex::new(Kept { reports, ..Kept::default() }))
    }

    /// The state of a run that ended because its group failed; `None` if this rank cannot continue it.
    pub fn take(&self) -> Option<LiveState> {
        self.lock().failed.take()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reported(&self, report: Report) {
        self.lock().reports.push(report);
    }

    /// Records that a checkpoint contains all steps so far, and that the one before is stored.
    pub(super) fn saved(&self) {
        let Kept { reports, in_checkpoint, boundary, .. } = &mut *self.lock();
        let mut number = 0;
        reports.retain(|report| {
            number += 1;
            number > *in_checkpoint || matches!(report, Report::Epoch(_))
        });
        *in_checkpoint = reports.len();
        if let Some(boundary) = boundary {
            boundary.reports = reports.len();
        }
    }
}

impl<M: StepModel> Run<'_, M> {
    /// Records for live recovery that the run is between two optimizer steps.
    pub(super) fn mark(&self) {
        let Some(recovery) = &self.settings.recovery else { return };
        let mut kept = recovery.lock();
        let mut buffers = TensorMap::new();
        if !kept.is_without_buffers {
            let model = self.learner.model();
            // Applies the last update of BatchNorm's running statistics.
            let _ = model.valid();
            buffers = values(&model, false).into_iter().collect();
            kept.is_without_buffers = buffers.is_empty();
            buffers.extend(kept.running.clone());
        }
        let reports = kept.reports.len();
        kept.boundary = Some(Boundary { position: self.position(), buffers, reports });
    }

    /// Receives rank 0's running statistics of BatchNorm, which are the model's, so that they are not lost with rank 0.
    ///
    /// Every rank must call it, before the optimizer's step: without them, the step is computed again.
    pub(super) fn share_running_statistics(&self, model: &M) -> Result<()> {
        let (Some(recovery), group) = (&self.settings.recovery, &self.settings.group) else { return Ok(()) };
        if group.world_size() == 1 || self.round.is_some() || recovery.lock().is_without_buffers {
            return Ok(());
        }
        // Applies the last update.
        let _ = model.valid();
        let statistics: Vec<_> = (values(model, false).into_iter())
            .zip(float_params(model).into_iter().filter(|param| !param.trainable))
            .filter(|(_, param)| {
                matches!(param.path.rsplit('.').next(), Some("running_mean" | "running_var"))
            })
            .map(|((id, tensor), _)| (id, tensor))
            .collect();
        if statistics.is_empty() {
            return Ok(());
        }
        let flat =
            |tensor: &Tensor<1>| reshaped(tensor.clone(), Shape::from([tensor.shape().num_elements()]));
        let data = statistics.iter().map(|(_, tensor)| read_data(flat(tensor)));
        let mut data = data.collect::<Result<Vec<_>>>()?;
        broadcast_data(data.iter_mut(), group, 0)?;
        let received = statistics
            .into_iter()
            .zip(data)
            .map(|((id, tensor), data)| (id, Tensor::from_data(data, (&tensor.device(), tensor.dtype()))));
        recovery.lock().running = received.collect();
        Ok(())
    }

    /// Keeps this rank's state for live recovery after a failure of the group.
    pub(super) fn keep_live_state(&self) {
        let Some(recovery) = &self.settings.recovery else { return };
        if let Err(error) = self.keep_state(&mut recovery.lock()) {
            self.settings.observe(|observer| observer.warned(&format!("this rank's state is lost: {error}")));
        }
    }

    fn keep_state(&self, kept: &mut Kept) -> Result<()> {
        // The parameters of a later step than the position's are not those of the boundary.
        let is_there = |boundary: &Boundary| boundary.position.step == self.position.step;
        let Some(boundary) = kept.boundary.take().filter(is_there) else { return Ok(()) };
        let mut records = self.records()?;
        let buffer = |id, trainable: bool| boundary.buffers.get(&id).filter(|_| !trainable).cloned();
        let model = replace(self.learner.model(), buffer);
        records.model = model.clone().into_record();
        let snapshot = Snapshot::take(records, boundary.position, self.averaged(model))?;
        let mut reports = std::mem::take(&mut kept.reports);
        reports.truncate(boundary.reports);
        kept.failed = Some(LiveState { snapshot, reports });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::metric::{MetricInfo, MetricValue};

    /// JSON has no NaN; with `allow_non_finite`, a loss may be.
    #[test]
    fn reports_and_positions_with_nan_can_be_sent() -> Result<(), Box<dyn std::error::Error>> {
        let value = MetricValue { metric: MetricInfo::new("loss"), value: f64::NAN };
        let step = StepReport { loss: f64::NAN, metrics: vec![value], ..StepReport::default() };
        let json = serde_json::to_string(&Report::Step(step))?;
        let Report::Step(step) = serde_json::from_str(&json)? else { panic!("{json}") };
        assert!(step.loss.is_nan() && step.metrics[0].value.is_nan());
        let position = Position { totals: vec![f64::NAN, 2.5], ..Position::start() };
        let position: Position = serde_json::from_str(&serde_json::to_string(&position)?)?;
        assert!(position.totals[0].is_nan() && position.totals[1] == 2.5);
        Ok(())
    }
}
