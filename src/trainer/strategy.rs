//! Configuration of the training strategy from flags and program.

use super::Loaders;
use crate::{context::Context, process::stop::GracefulShutdown};
use anyhow::{Result, bail};
use burn::train::{
    Learner, LearnerModel, LearningResult, SupervisedTraining, TrainingStrategy, logger::InMemoryMetricLogger,
};
use collective::{
    StepOptions,
    data_parallel::{DataParallelConfig, ParallelStep},
    loader::DistributedLoader,
    metric::StepOutput,
    strategy::{
        Callback, Checkpoints, ComputeBatch, DdpStrategy, DpStrategy, Observer, ParallelStrategy, Snapshot,
        StopRequest, TrainedOutput, ValidInput, ValidOutput, collective_error,
    },
};
use std::sync::Arc;

/// Makes the strategy of a run, on one device or those of `--mode dp`.
pub(super) type MakeStrategy<M> =
    fn(&Context, Option<DataParallelConfig>, &Loaders<M>, Setup<M>) -> Result<TrainingStrategy<M>>;

/// The strategy for a model that has only a `TrainStep`, and therefore no devices of `--mode dp`.
pub(super) fn train_step<M>(
    context: &Context,
    _: Option<DataParallelConfig>,
    loaders: &Loaders<M>,
    setup: Setup<M>,
) -> Result<TrainingStrategy<M>>
where
    M: LearnerModel,
    TrainedOutput<M>: StepOutput,
    ValidOutput<M>: StepOutput,
{
    Ok(setup.apply(one_device(context, loaders)))
}

/// The strategy for a model with a [`ParallelStep`].
pub(super) fn parallel_step<M>(
    context: &Context,
    devices: Option<DataParallelConfig>,
    loaders: &Loaders<M>,
    setup: Setup<M>,
) -> Result<TrainingStrategy<M>>
where
    M: LearnerModel + ParallelStep,
    TrainedOutput<M>: StepOutput,
    ValidOutput<M>: StepOutput,
{
    Ok(match devices {
        Some(devices) => setup.apply(DpStrategy::new(devices, loaders.train.clone(), loaders.evaluated())?),
        None => setup.apply(one_device(context, loaders).with_parallel_step()),
    })
}

fn one_device<M: LearnerModel>(context: &Context, loaders: &Loaders<M>) -> DdpStrategy<M> {
    let (train, evaluated) = (loaders.train.clone(), loaders.evaluated());
    DdpStrategy::new(context.group().clone(), context.device(), train, evaluated)
}

/// Inputs common to all training strategies.
pub(super) struct Setup<M: LearnerModel> {
    pub options: StepOptions,
    pub observers: Vec<Arc<dyn Observer>>,
    pub callbacks: Vec<Box<dyn Callback<M>>>,
    /// Evaluated at the end only.
    pub test: Option<Arc<dyn DistributedLoader<ValidInput<M>>>>,
    pub checkpoints: Checkpoints,
    pub snapshot: Option<Snapshot>,
    pub max_steps: Option<usize>,
    pub stop: Arc<StopRequest>,
}

/// How the strategy is made, and the devices of `--mode dp`.
pub(super) type Parallel<M> = (MakeStrategy<M>, Option<DataParallelConfig>);

impl<M> Setup<M>
where
    M: LearnerModel,
    TrainedOutput<M>: StepOutput,
    ValidOutput<M>: StepOutput,
{
    /// Runs burn-train's training loop until the last epoch, a stop or a failure.
    ///
    /// `configure` adds metrics and the renderer.
    ///
    /// # Errors
    /// If the group, a device, the data loader or the optimizer fails, or the loss is not finite.
    pub fn run(
        self,
        context: &Context,
        loaders: &Loaders<M>,
        (make, devices): Parallel<M>,
        learner: Learner<M>,
        epochs: usize,
        configure: impl FnOnce(SupervisedTraining<M>) -> SupervisedTraining<M>,
    ) -> Result<LearningResult<M>> {
        let (train, evaluated) = (loaders.train.clone(), loaders.evaluated());
        let strategy = make(context, devices, loaders, self)?;
        let training = SupervisedTraining::<M>::new(".", train, evaluated)
            .with_metric_logger(InMemoryMetricLogger::default())
            .with_application_logger(None)
            .num_epochs(epochs);
        let graceful_shutdown = GracefulShutdown::enable();
        let result = configure(training).with_training_strategy(strategy).launch(learner);
        drop(graceful_shutdown);
        if let Some(failure) = collective_error(&result) {
            return Err(failure.clone().into());
        }
        match result.error {
            Some(error) => bail!("training stopped: {error}"),
            None => Ok(result),
        }
    }

    /// Configures a strategy.
    pub fn apply<C: ComputeBatch<M> + 'static>(
        self,
        strategy: ParallelStrategy<M, C>,
    ) -> TrainingStrategy<M> {
        let strategy = strategy
            .with_observer(Arc::new(self.observers))
            .with_callbacks(self.callbacks)
            .with_test(self.test)
            .with_max_steps(self.max_steps)
            .with_resume(self.snapshot)
            .with_options(self.options)
            .with_checkpoints(self.checkpoints)
            .with_stop(self.stop);
        TrainingStrategy::Custom(Arc::new(strategy))
    }
}
