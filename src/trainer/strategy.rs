//! The training strategy of a run.

use super::Loaders;
use crate::{context::Context, process::stop::GracefulShutdown};
use anyhow::Result;
use burn::train::{Learner, LearnerModel, LearningResult, SupervisedTraining, logger::InMemoryMetricLogger};
use collective::{
    dp::{DataParallelConfig, ParallelStep},
    strategy::{ParallelStrategy, StepModel},
};

/// Makes the strategy of a run, on one device or those of `--mode dp`.
pub(super) type MakeStrategy<M> =
    fn(&Context, Option<DataParallelConfig>, &Loaders<M>) -> Result<ParallelStrategy<M>>;

/// The strategy for a model that has only a `TrainStep`, and therefore no devices of `--mode dp`.
pub(super) fn train_step<M: LearnerModel>(
    context: &Context,
    _: Option<DataParallelConfig>,
    loaders: &Loaders<M>,
) -> Result<ParallelStrategy<M>> {
    let (train, evaluated) = (loaders.train.clone(), loaders.evaluated());
    Ok(ParallelStrategy::new(context.group().clone(), context.device(), train, evaluated))
}

/// The strategy for a model with a [`ParallelStep`].
pub(super) fn parallel_step<M: LearnerModel + ParallelStep>(
    context: &Context,
    devices: Option<DataParallelConfig>,
    loaders: &Loaders<M>,
) -> Result<ParallelStrategy<M>> {
    match devices {
        Some(devices) => {
            Ok(ParallelStrategy::on_devices(devices, loaders.train.clone(), loaders.evaluated())?)
        }
        None => Ok(train_step(context, None, loaders)?.with_parallel_step()),
    }
}

/// Runs burn-train's training loop until the last epoch, a stop or a failure.
///
/// `configure` adds metrics and the renderer.
///
/// # Errors
/// If the group, a device, the data loader or the optimizer fails, or the loss is not finite.
pub(super) fn run<M: StepModel>(
    strategy: ParallelStrategy<M>,
    loaders: &Loaders<M>,
    learner: Learner<M>,
    epochs: usize,
    configure: impl FnOnce(SupervisedTraining<M>) -> SupervisedTraining<M>,
) -> Result<LearningResult<M>> {
    let training = SupervisedTraining::<M>::new(".", loaders.train.clone(), loaders.evaluated())
        .with_metric_logger(InMemoryMetricLogger::default())
        .with_application_logger(None)
        .num_epochs(epochs);
    let _graceful_shutdown = GracefulShutdown::enable();
    Ok(strategy.launch(configure(training), learner)?)
}
