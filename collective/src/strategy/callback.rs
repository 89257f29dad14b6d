//! Callbacks and metrics for what each rank computes. Their states are joined over ranks at the end of every
//! evaluation, if they implement `Distributed`.

use super::{EpochReport, Observer, TrainedOutput, ValidOutput};
use crate::{Error, ProcessGroup, Result};
use burn::data::dataloader::Progress;
use burn::optim::GradientsParams;
use burn::tensor::TensorReadError;
use burn::train::{
    LearnerModel,
    metric::{Adaptor, Metric, MetricMetadata},
};
use serde::{Serialize, de::DeserializeOwned};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A callback or burn-train [`Metric`] whose state can be gathered from every rank and joined.
#[diagnostic::on_unimplemented(
    message = "`{Self}` sees one rank's samples only",
    label = "not allowed in a world of many ranks",
    note = "implement `collective::strategy::Distributed`, which says how the ranks' states are joined"
)]
pub trait Distributed {
    /// Sums and counts, or whatever joins without counting a sample twice.
    type State: Serialize + DeserializeOwned;
    /// This rank's state since the last [`join`](Self::join).
    fn state(&mut self) -> Self::State;
    /// Replaces the state by those of all ranks, in rank order. Called on every rank with the same
    /// states.
    fn join(&mut self, states: Vec<Self::State>);
}

/// A [`Distributed`] whose state's type is not named; implemented for all of them.
pub trait Join {
    /// Joins over all ranks of `group`, which all call it.
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

/// Observes what each rank computes. For values that are the same on all ranks, an
/// [`Observer`](super::Observer) is enough.
pub trait Callback<M: LearnerModel>: Send {
    /// Its name in errors.
    fn name(&self) -> String {
        std::any::type_name::<Self>().into()
    }

    /// A training batch of this rank, of `samples` samples.
    ///
    /// # Errors
    /// A reason, which ends the run.
    fn trained(&mut self, _output: &TrainedOutput<M>, _samples: usize) -> Result<(), String> {
        Ok(())
    }

    /// The gradients of step `step`, counted from 1, averaged over all ranks and clipped, before the
    /// optimizer takes them: the same on every rank. `model` has their parameters. In f16 there are
    /// none in a step that overflowed.
    ///
    /// # Errors
    /// A reason, which ends the run.
    fn averaged(&mut self, _step: usize, _model: &M, _grads: &GradientsParams) -> Result<(), String> {
        Ok(())
    }

    /// An evaluation batch of this rank. Every sample comes once, on one rank.
    ///
    /// # Errors
    /// A reason, which ends the run.
    fn evaluated(&mut self, _output: &ValidOutput<M>, _samples: usize) -> Result<(), String> {
        Ok(())
    }

    /// This callback as a [`Distributed`] one, whose states are joined after each evaluation: `Some(self)`.
    /// A callback without it is refused in a world of several ranks.
    fn distributed(&mut self) -> Option<&mut dyn Join> {
        None
    }

    /// Called after an epoch's evaluation, with the joined state on every rank. A name and value that it returns are
    /// passed to the [`Observer`](super::Observer). Reset the state here.
    ///
    /// # Errors
    /// A reason, which ends the run.
    fn epoch_done(&mut self, _report: &EpochReport) -> Result<Option<(String, String)>, String> {
        Ok(None)
    }
}

/// A burn-train metric over evaluation outputs, as a callback.
pub(super) struct OfMetric<T>(pub T);

impl<T: Metric> OfMetric<T> {
    fn failed(&self, error: &TensorReadError) -> String {
        format!("metric {}: {error}", self.0.name())
    }
}

impl<M, T> Callback<M> for OfMetric<T>
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

    fn epoch_done(&mut self, _: &EpochReport) -> Result<Option<(String, String)>, String> {
        let entry = self.0.compute().map_err(|error| self.failed(&error))?;
        self.0.clear();
        Ok(Some((self.0.name().to_string(), entry.formatted)))
    }
}

/// The callbacks of a run.
pub(super) struct Callbacks<M: LearnerModel>(Mutex<Vec<Box<dyn Callback<M>>>>);

impl<M: LearnerModel> Default for Callbacks<M> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<M: LearnerModel> Callbacks<M> {
    fn all(&self) -> MutexGuard<'_, Vec<Box<dyn Callback<M>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, callbacks: Vec<Box<dyn Callback<M>>>) {
        self.all().extend(callbacks);
    }

    /// Refuses callbacks that would be wrong in a world of many ranks.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the callback.
    pub fn admit(&self, ranks: usize) -> Result<()> {
        match self.all().iter_mut().find_map(|c| c.distributed().is_none().then(|| c.name())) {
            Some(name) if ranks > 1 => Err(Error::Invalid(format!(
                "callback {name} sees one rank's samples only, and there are {ranks} ranks: implement \
                 collective::strategy::Distributed for it and return Some(self) from its `distributed`, or \
                 train on one device"
            ))),
            Some(_) | None => Ok(()),
        }
    }

    pub fn names(&self) -> Vec<String> {
        self.all().iter().map(|callback| callback.name()).collect()
    }

    /// Calls `act` on every callback, in the order in which they were added.
    ///
    /// # Errors
    /// The first reason, as [`Error::Invalid`].
    pub fn each(&self, mut act: impl FnMut(&mut dyn Callback<M>) -> Result<(), String>) -> Result<()> {
        self.all().iter_mut().try_for_each(|callback| act(&mut **callback)).map_err(Error::Invalid)
    }

    /// Joins the callbacks' states of an epoch over all ranks, and passes their values to `observer`.
    ///
    /// # Errors
    /// If the group or a callback fails.
    pub fn join(&self, report: &EpochReport, group: &ProcessGroup, observer: &dyn Observer) -> Result<()> {
        for callback in self.all().iter_mut() {
            if let Some(join) = callback.distributed() {
                join.join_over(group)?;
            }
            if let Some((name, value)) = callback.epoch_done(report).map_err(Error::Invalid)? {
                observer.metric_logged(report.epoch, &name, &value);
            }
        }
        Ok(())
    }
}
