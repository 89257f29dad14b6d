//! Configuration of the training strategy from flags and program.

use crate::config::TrainerArgs;
use crate::run::tensorboard::GradientHistograms;
use burn::train::{LearnerModel, TrainingStrategy};
use collective::{
    loader::DistributedLoader,
    metric::StepOutput,
    strategy::{
        Callback, Checkpoints, ComputeBatch, Observer, ParallelStrategy, Snapshot, StopRequest,
        TrainedOutput, ValidInput, ValidOutput,
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
    pub stop: Arc<StopRequest>,
}

impl<M> Setup<'_, M>
where
    M: LearnerModel,
    TrainedOutput<M>: StepOutput,
    ValidOutput<M>: StepOutput,
{
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
            .allow_non_finite_loss(args.allow_nan)
            .with_stop(self.stop);
        TrainingStrategy::Custom(match self.histograms {
            Some(histograms) => Arc::new(strategy.with_callback(histograms)),
            None => Arc::new(strategy),
        })
    }
}
