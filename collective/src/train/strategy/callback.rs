//! Callbacks and metrics on each rank's values, and what they request of the run. States that implement `Distributed`
//! are joined over ranks after every evaluation.

use super::{EpochReport, LoggedValue, TrainedOutput, ValidOutput};
use crate::{
    Error, ProcessGroup, Result,
    train::metric::{MetricInfo, MetricValue},
};
use burn::data::dataloader::Progress;
use burn::optim::GradientsParams;
use burn::tensor::TensorReadError;
use burn::train::{
    LearnerModel,
    metric::{Adaptor, Metric, MetricMetadata, NumericEntry},
};
use serde::{Serialize, de::DeserializeOwned};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A callback or burn-train [`Metric`] whose state can be gathered from every rank and joined.
#[diagnostic::on_unimplemented(
    message = "`{Self}` covers one rank's samples only",
    label = "not supported with several ranks",
    note = "implement `burn_ddp::strategy::Distributed`, which defines how the ranks' states are joined"
)]
pub trait Distributed {
    /// State such as sums and counts, which can be joined without counting a sample twice.
    type State: Serialize + DeserializeOwned;
    /// This rank's state since the last [`join`](Self::join).
    fn state(&mut self) -> Self::State;
    /// Replaces the state by the joined `states` of all ranks.
    ///
    /// Called on every rank with equal states in rank order.
    fn join(&mut self, states: Vec<Self::State>);
}

/// Object-safe form of [`Distributed`], implemented for all its implementors.
pub trait Join {
    /// Joins the state over all ranks of `group`. Every rank must call it.
    ///
    /// # Errors
    /// If the group fails.
    fn join_over(&mut self, group: &ProcessGroup) -> Result<()>;
}

impl<T: Distributed> Join for T {
    fn join_over(&mut self, group: &ProcessGroup) -> Result<()> {
        let states = group.all_gather_object(&self.state())?;
        self.join(states);
        Ok(())
    }
}

/// Requests of a callback to the run.
#[derive(Clone, Debug, Default)]
pub struct RunControl {
    pub(super) stop: Option<String>,
    pub(super) save: bool,
    pub(super) lr_factor: Option<f64>,
}

impl RunControl {
    /// Ends training after the optimizer step or epoch in progress, with an evaluation.
    ///
    /// A request of any rank stops all ranks. Rank 0's `reason` is shown.
    pub fn stop(&mut self, reason: impl Into<String>) {
        self.stop = Some(reason.into());
    }

    /// Takes a checkpoint after the optimizer step in progress, if any rank requests it.
    pub fn save(&mut self) {
        self.save = true;
    }

    /// Multiplies the learning rate by `factor` from the next epoch on. Rank 0's request counts.
    pub fn scale_lr(&mut self, factor: f64) {
        self.lr_factor = Some(self.lr_factor.unwrap_or(1.0) * factor);
    }
}

/// Observes each rank's batches, gradients and outputs, and controls the run.
///
/// In a run with a test set, such as one with `--valid-split`, [`evaluated`](Self::evaluated) and
/// [`evaluation_done`](Self::evaluation_done) are called at the end of the run only, with the outputs and the report of
/// the test set. In other runs, they are called after every epoch, for the set that is evaluated then. A callback
/// [with metrics](super::ParallelStrategy::with_metric_callback) is called after every evaluation of any run.
///
/// For values that are equal on all ranks, an [`Observer`](super::Observer) is sufficient.
pub trait Callback<M: LearnerModel>: Send {
    /// Name of the callback in errors.
    fn name(&self) -> String {
        std::any::type_name::<Self>().into()
    }

    /// Called after a training batch of this rank with `samples` samples.
    ///
    /// # Errors
    /// An error message, which ends the run.
    fn on_train_batch(
        &mut self,
        _output: &TrainedOutput<M>,
        _samples: usize,
        _control: &mut RunControl,
    ) -> Result<(), String> {
        Ok(())
    }

    /// Called before the optimizer step with the averaged and clipped gradients, equal on every rank. With a sharded
    /// optimizer, they are those of this rank's shard; with local SGD, those of this rank's batch.
    ///
    /// `step` counts from 1, and `model` has the parameters. In f16, a step that overflowed has no gradients.
    ///
    /// # Errors
    /// An error message, which ends the run.
    fn on_gradients(&mut self, _step: usize, _model: &M, _grads: &GradientsParams) -> Result<(), String> {
        Ok(())
    }

    /// Called after an evaluation batch of this rank. Every sample is in exactly one rank's batches.
    ///
    /// # Errors
    /// An error message, which ends the run.
    fn evaluated(&mut self, _output: &ValidOutput<M>, _samples: usize) -> Result<(), String> {
        Ok(())
    }

    /// Returns `Some(self)` if the callback is [`Distributed`], so that its states are joined after each evaluation.
    ///
    /// Callbacks that return `None` are refused if there are several ranks.
    fn distributed(&mut self) -> Option<&mut dyn Join> {
        None
    }

    /// Called after an evaluation with the joined state on every rank.
    ///
    /// Returned values become part of the report that the [`Observer`](super::Observer) receives. Reset the state
    /// here.
    ///
    /// # Errors
    /// An error message, which ends the run.
    fn evaluation_done(&mut self, _report: &EpochReport) -> Result<Vec<LoggedValue>, String> {
        Ok(Vec::new())
    }

    /// Called on every rank after an epoch and its evaluation, with the metrics of all callbacks.
    ///
    /// # Errors
    /// An error message, which ends the run.
    fn epoch_done(&mut self, _report: &EpochReport, _control: &mut RunControl) -> Result<(), String> {
        Ok(())
    }
}

/// Adapter of a burn-train metric over evaluation outputs to a callback.
pub(super) struct BurnMetric<T>(pub T);

impl<T: Metric> BurnMetric<T> {
    fn failed(&self, error: &TensorReadError) -> String {
        format!("metric {}: {error}", self.0.name())
    }
}

impl<M, T> Callback<M> for BurnMetric<T>
where
    M: LearnerModel,
    T: Metric + Distributed,
    ValidOutput<M>: Adaptor<T::Input>,
{
    fn name(&self) -> String {
        self.0.name().to_string()
    }

    fn evaluated(&mut self, output: &ValidOutput<M>, samples: usize) -> Result<(), String> {
        let progress = Progress::new(samples, samples, Some("items".into()));
        let metadata = MetricMetadata { progress, iteration: None, lr: None };
        let updated = self.0.update(&output.adapt(), &metadata);
        updated.map(drop).map_err(|error| self.failed(&error))
    }

    fn distributed(&mut self) -> Option<&mut dyn Join> {
        Some(&mut self.0)
    }

    fn evaluation_done(&mut self, _: &EpochReport) -> Result<Vec<LoggedValue>, String> {
        let entry = self.0.compute().map_err(|error| self.failed(&error))?;
        self.0.clear();
        let number = NumericEntry::deserialize(&entry.serialized).ok().map(|entry| entry.current());
        Ok(vec![LoggedValue { name: self.0.name().to_string(), text: entry.formatted, number }])
    }
}

/// A callback, and those of its values that are metrics.
pub type MetricCallback<M> = (Vec<MetricInfo>, Box<dyn Callback<M>>);

/// The callbacks of a run.
pub(super) struct Callbacks<M: LearnerModel>(Mutex<Vec<MetricCallback<M>>>);

impl<M: LearnerModel> Default for Callbacks<M> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<M: LearnerModel> Callbacks<M> {
    fn all(&self) -> MutexGuard<'_, Vec<MetricCallback<M>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, callbacks: Vec<MetricCallback<M>>) {
        self.all().extend(callbacks);
    }

    /// Refuses callbacks that are not distributed if there are several ranks.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the callback.
    pub fn admit(&self, ranks: usize) -> Result<()> {
        match self.all().iter_mut().find_map(|(_, c)| c.distributed().is_none().then(|| c.name())) {
            Some(name) if ranks > 1 => Err(Error::Invalid(format!(
                "callback {name} covers one rank's samples only, but there are {ranks} ranks: implement \
                 burn_ddp::strategy::Distributed for it and return Some(self) from its `distributed`, or \
                 train on one device"
            ))),
            Some(_) | None => Ok(()),
        }
    }

    pub fn names(&self) -> Vec<String> {
        self.all().iter().map(|(_, callback)| callback.name()).collect()
    }

    /// Calls `act` on every callback, in the order in which they were added.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the first error of a callback.
    pub fn each(&self, mut act: impl FnMut(&mut dyn Callback<M>) -> Result<(), String>) -> Result<()> {
        self.all().iter_mut().try_for_each(|(_, callback)| act(&mut **callback)).map_err(Error::Invalid)
    }

    /// Passes an evaluation batch to all callbacks of the last set of a run, otherwise to those with metrics.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the first error of a callback.
    pub fn evaluated(&self, output: &ValidOutput<M>, samples: usize, is_last: bool) -> Result<()> {
        let mut all = self.all();
        let mut called = all.iter_mut().filter(|(metrics, _)| is_last || !metrics.is_empty());
        called.try_for_each(|(_, callback)| callback.evaluated(output, samples)).map_err(Error::Invalid)
    }

    /// Joins the states of the callbacks that [`evaluated`](Self::evaluated) calls over all ranks, and adds their values
    /// to `report`.
    ///
    /// # Errors
    /// If the group or a callback fails, or a callback does not return one of its metrics.
    pub fn join(&self, report: &mut EpochReport, group: &ProcessGroup, is_last: bool) -> Result<()> {
        for (metrics, callback) in self.all().iter_mut().filter(|(metrics, _)| is_last || !metrics.is_empty())
        {
            if let Some(join) = callback.distributed() {
                join.join_over(group)?;
            }
            let mut logged = callback.evaluation_done(report).map_err(Error::Invalid)?;
            for metric in metrics.iter() {
                let found = logged.iter().position(|value| value.name == metric.name);
                let Some(value) = found.and_then(|at| logged.remove(at).number) else {
                    let (callback, metric) = (callback.name(), &metric.name);
                    return Err(Error::Invalid(format!(
                        "callback {callback} returned no number with the name of its metric `{metric}`"
                    )));
                };
                report.metrics.push(MetricValue { metric: metric.clone(), value });
            }
            report.logged.extend(logged);
        }
        Ok(())
    }
}
