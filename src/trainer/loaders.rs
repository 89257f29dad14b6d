//! The data loaders of a trainer: this rank's share of a data set, in batches.

use super::Trainer;
use burn::data::{dataloader::batcher::Batcher, dataset::Dataset};
use burn::train::LearnerModel;
use collective::{
    loader::{ShardedLoader, ShardedLoaderBuilder},
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
    /// Loader of the training set: shuffled anew in every epoch unless `--no-shuffle` is given, in batches of
    /// `--batch-size` per rank.
    pub fn train_loader<I, D, B>(&self, dataset: D, batcher: B) -> Arc<ShardedLoader<I, TrainInput<M>>>
    where
        I: Clone + Send + Sync + 'static,
        D: Dataset<I> + 'static,
        B: Batcher<I, TrainInput<M>> + 'static,
        TrainInput<M>: Send + 'static,
    {
        Arc::new(self.sharded(dataset, batcher, self.shuffle_seed()).build(self.context.world()))
    }

    /// Loader of the test set, in the order of the data set.
    pub fn test_loader<I, D, B>(&self, dataset: D, batcher: B) -> Arc<ShardedLoader<I, ValidInput<M>>>
    where
        I: Clone + Send + Sync + 'static,
        D: Dataset<I> + 'static,
        B: Batcher<I, ValidInput<M>> + 'static,
        ValidInput<M>: Send + 'static,
    {
        Arc::new(self.sharded(dataset, batcher, None).build(self.context.world()))
    }

    /// The seed of the order of training samples; `None` with `--no-shuffle`.
    pub fn shuffle_seed(&self) -> Option<u64> {
        (!self.args.no_shuffle).then_some(self.args.seed)
    }

    /// Builder of a loader of batches that need not be the model's input yet, shuffled if there is a seed.
    pub fn sharded<I, O, D, B>(&self, dataset: D, batcher: B, seed: Option<u64>) -> ShardedLoaderBuilder<I, O>
    where
        D: Dataset<I> + 'static,
        B: Batcher<I, O> + 'static,
    {
        let loader = ShardedLoader::builder(dataset, batcher)
            .batch_size(self.args.batch_size)
            .num_workers(self.args.workers);
        match seed {
            Some(seed) => loader.shuffle(seed),
            None => loader,
        }
    }
}
