//! Data loaders of a trainer: this rank's shard of a data set, in batches.

use super::Trainer;
use burn::data::{dataloader::batcher::Batcher, dataset::Dataset};
use burn::train::LearnerModel;
use collective::{
    loader::ShardedLoader,
    metric::StepOutput,
    strategy::{TrainInput, TrainedOutput, ValidInput, ValidOutput},
};
use std::sync::Arc;

impl<M> Trainer<'_, M>
where
    M: LearnerModel,
    TrainedOutput<M>: StepOutput,
    ValidOutput<M>: StepOutput,
{
    /// Creates the loader of the training set.
    ///
    /// Batches have `--batch-size` samples per rank. The order is shuffled in every epoch unless `--no-shuffle` is set.
    pub fn train_loader<I, D, B>(&self, dataset: D, batcher: B) -> Arc<ShardedLoader<I, TrainInput<M>>>
    where
        I: Clone + Send + Sync + 'static,
        D: Dataset<I> + 'static,
        B: Batcher<I, TrainInput<M>> + 'static,
        TrainInput<M>: Send + 'static,
    {
        Arc::new(self.sharded(dataset, batcher, self.shuffle_seed()))
    }

    /// Creates the loader of the test set, in the order of the data set.
    pub fn test_loader<I, D, B>(&self, dataset: D, batcher: B) -> Arc<ShardedLoader<I, ValidInput<M>>>
    where
        I: Clone + Send + Sync + 'static,
        D: Dataset<I> + 'static,
        B: Batcher<I, ValidInput<M>> + 'static,
        ValidInput<M>: Send + 'static,
    {
        Arc::new(self.sharded(dataset, batcher, None))
    }

    /// Shuffling seed of the training set; `None` with `--no-shuffle`.
    pub fn shuffle_seed(&self) -> Option<u64> {
        (!self.args.no_shuffle).then_some(self.args.seed)
    }

    /// Creates a loader of batches of any type, shuffled if there is a seed.
    pub fn sharded<I, O, D, B>(&self, dataset: D, batcher: B, seed: Option<u64>) -> ShardedLoader<I, O>
    where
        I: Clone + Send + Sync + 'static,
        O: Send + 'static,
        D: Dataset<I> + 'static,
        B: Batcher<I, O> + 'static,
    {
        let (size, workers) = (self.args.batch_size, self.args.workers);
        ShardedLoader::new(Arc::new(dataset), Arc::new(batcher), self.context.world(), size, seed, workers)
    }
}
