//! What a strategy computes a batch with: the rank's device, or several devices of its process.

use super::{TrainInput, TrainedOutput};
use crate::{
    Error, Result,
    batch_scope::BatchScope,
    device_error::{cause_of_panic, panic_text},
    dp::{DataParallelConfig, ParallelStep, Replicas, Scatter, forward},
    precision::{Precision, backward},
};
use burn::train::{LearnerModel, TrainOutput, TrainStep};
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Mutex, PoisonError},
};

/// The result of forward and backward over a batch.
type Computed<M> = Result<TrainOutput<TrainedOutput<M>>>;

/// Computes forward and backward over a batch of this rank, with [copies](BatchScope::copy) of the learner's module.
pub(super) type ComputeBatch<M> = dyn Fn(&M, TrainInput<M>, &mut BatchScope<'_>) -> Computed<M> + Send + Sync;

/// Computes on this rank's device, with the model's `TrainStep`.
pub(super) fn one_device<M: LearnerModel>(
    module: &M,
    batch: TrainInput<M>,
    scope: &mut BatchScope<'_>,
) -> Computed<M> {
    let precision = scope.precision;
    let net = scope.copy(module, precision);
    scope.enter(|| of_one_type(precision, || TrainStep::step(&net, batch)))
}

/// Computes on this rank's device: in f32 with the model's `TrainStep`, in 16 bits with its [`ParallelStep`].
pub(super) fn split_step<M: LearnerModel + ParallelStep>(
    module: &M,
    batch: TrainInput<M>,
    scope: &mut BatchScope<'_>,
) -> Computed<M> {
    let precision = scope.precision;
    if precision == Precision::F32 {
        return one_device(module, batch, scope);
    }
    let (in_f32, net) = (scope.copy(module, Precision::F32), scope.copy(module, precision));
    let step = || {
        let outputs = forward(&net, batch.clone(), precision);
        let (loss, item) = in_f32.criterion(outputs, batch);
        TrainOutput::new(&in_f32, backward(&loss), item)
    };
    scope.enter(|| of_one_type(precision, step))
}

/// Runs a step. In 16 bits, Burn's panic about tensors of two types becomes an error.
fn of_one_type<R>(precision: Precision, step: impl FnOnce() -> R) -> Result<R> {
    if precision == Precision::F32 {
        return Ok(step());
    }
    catch_unwind(AssertUnwindSafe(step)).or_else(|panic| match panic_text(&*panic) {
        Some(text) if text.contains("dtype mismatch") => Err(Error::Invalid(format!(
            "precision {precision}: the training step mixes tensors of two types ({}); register the model's ParallelStep with Trainer::data_parallel() or DdpStrategy::with_parallel_step(), and cast all float inputs in the batch's Scatter::cast",
            cause_of_panic(text)
        ))),
        _ => resume_unwind(panic),
    })
}

/// Computes on several devices of this process. The replicas are made at the first step, from the learner's module.
pub(super) fn replica_devices<M: LearnerModel + ParallelStep>(
    config: DataParallelConfig,
) -> Box<ComputeBatch<M>> {
    let replicas = Mutex::new(None);
    Box::new(move |module, batch, scope| {
        // The replicas cast their own copies.
        let (module, precision) = (&scope.copy(module, Precision::F32), scope.precision);
        let mut replicas = replicas.lock().unwrap_or_else(PoisonError::into_inner);
        let replicas = match &mut *replicas {
            Some(replicas) => replicas,
            none => none.insert(Replicas::new(module, &config)?),
        };
        let seeds: Vec<_> =
            (0..replicas.busy_workers(Scatter::samples(&batch))).map(|_| scope.draw()).collect();
        let mut seeds = seeds.into_iter();
        scope.enter(|| replicas.step(precision, module, batch, || seeds.next().flatten()))
    })
}
