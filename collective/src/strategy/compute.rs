//! What a strategy computes a batch with: the rank's device, or several devices of its process.

use super::{TrainInput, TrainedOutput};
use crate::{
    Result,
    data_parallel::{DataParallelConfig, ParallelStep, Replicas, Scatter},
    wrapper::engine::BatchScope,
};
use burn::train::{LearnerModel, TrainOutput, TrainStep};
use std::sync::{Mutex, PoisonError};

/// How a strategy computes one batch.
pub trait ComputeBatch<M: LearnerModel>: Send + Sync {
    /// Forward and backward over a batch of this rank. `module` is the learner's, on the strategy's device.
    ///
    /// # Errors
    /// If a replica fails.
    fn compute(
        &self,
        module: &M,
        batch: TrainInput<M>,
        scope: &mut BatchScope<'_>,
    ) -> Result<TrainOutput<TrainedOutput<M>>>;
}

/// Computes on this rank's device.
pub struct OneDevice;

impl<M: LearnerModel> ComputeBatch<M> for OneDevice {
    fn compute(
        &self,
        module: &M,
        batch: TrainInput<M>,
        scope: &mut BatchScope<'_>,
    ) -> Result<TrainOutput<TrainedOutput<M>>> {
        Ok(scope.enter(|| TrainStep::step(module, batch)))
    }
}

/// Computes on several devices of this process.
pub struct ReplicaDevices<M> {
    config: DataParallelConfig,
    /// Made at the first step, from the learner's module.
    replicas: Mutex<Option<Replicas<M>>>,
}

impl<M> ReplicaDevices<M> {
    pub(super) fn new(config: DataParallelConfig) -> Self {
        Self { config, replicas: Mutex::default() }
    }
}

impl<M: LearnerModel + ParallelStep> ComputeBatch<M> for ReplicaDevices<M> {
    fn compute(
        &self,
        module: &M,
        batch: TrainInput<M>,
        scope: &mut BatchScope<'_>,
    ) -> Result<TrainOutput<TrainedOutput<M>>> {
        let mut replicas = self.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        let replicas = match &mut *replicas {
            Some(replicas) => replicas,
            none => none.insert(Replicas::new(module, &self.config)?),
        };
        let seeds: Vec<_> =
            (0..replicas.busy_workers(Scatter::samples(&batch))).map(|_| scope.draw()).collect();
        let mut seeds = seeds.into_iter();
        scope.enter(|| replicas.seeded_step(module, batch, || seeds.next().flatten()))
    }
}
