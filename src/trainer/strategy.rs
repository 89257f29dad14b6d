//! Configuration of the training strategy from flags and program.

use super::{Loaders, MakeDp};
use crate::{config::TrainerArgs, context::Context, run::tensorboard::GradientHistograms};
use anyhow::{Result, bail};
use burn::train::{
    Learner, LearnerModel, LearningResult, SupervisedTraining, TrainingStrategy, logger::InMemoryMetricLogger,
};
use collective::{
    data_parallel::DataParallelConfig,
    loader::DistributedLoader,
    metric::StepOutput,
    strategy::{
        Callback, Checkpoints, ComputeBatch, DdpStrategy, Observer, ParallelStrategy, Snapshot, StopRequest,
        TrainedOutput, ValidInput, ValidOutput, collective_error,
    },
};
use std::sync::Arc;

/// Inputs common to all training strategies.
pub(super) struct Setup<'a, M: LearnerModel> {
    pub args: &'a TrainerArgs,
    pub observers: Vec<Arc<dyn Observer>>,
    pub callbacks: Vec<Box<dyn Callback<M>>>,
    pub histograms: Option<GradientHistograms>,
    /// Evaluated at the end only.
    pub test: Option<Arc<dyn DistributedLoader<ValidInput<M>>>>,
    pub checkpoints: Checkpoints,
    pub snapshot: Option<Snapshot>,
    pub max_steps: Option<usize>,
    /// Whether to continue when the loss is not finite.
    pub allow_nan: bool,
    pub stop: Arc<StopRequest>,
}

/// Devices of `--mode dp`, and how the strategy is made for them.
pub(super) type Parallel<M> = Option<(MakeDp<M>, DataParallelConfig)>;

impl<M> Setup<'_, M>
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
        parallel: Parallel<M>,
        learner: Learner<M>,
        epochs: usize,
        configure: impl FnOnce(SupervisedTraining<M>) -> SupervisedTraining<M>,
    ) -> Result<LearningResult<M>> {
        let (group, device) = (context.group().clone(), context.device());
        let (train, evaluated) = (loaders.train.clone(), loaders.evaluated());
        let strategy = match parallel {
            Some((make, devices)) => make(devices, loaders, self)?,
            None => self.apply(DdpStrategy::new(group, device, train.clone(), evaluated.clone())),
        };
        let training = SupervisedTraining::<M>::new(".", train, evaluated)
            .with_metric_logger(InMemoryMetricLogger::default())
            .with_application_logger(None)
            .num_epochs(epochs);
        let graceful_shutdown = context.signals().enable_graceful_shutdown();
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
        let (args, gradients) = (self.args, &self.args.gradients);
        let strategy = strategy
            .with_observer(Arc::new(self.observers))
            .with_callbacks(self.callbacks)
            .with_test(self.test)
            .with_max_steps(self.max_steps)
            .with_resume(self.snapshot)
            .with_reducer(gradients.reducer())
            .with_accumulation(gradients.grad_accum_steps)
            .with_clip(gradients.clip_grad_norm)
            .with_checkpoints(self.checkpoints)
            .with_seed(args.seed)
            .allow_non_finite_loss(self.allow_nan)
            .with_stop(self.stop);
        TrainingStrategy::Custom(match self.histograms {
            Some(histograms) => Arc::new(strategy.with_callback(histograms)),
            None => Arc::new(strategy),
        })
    }
}
