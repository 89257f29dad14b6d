//! Data loaders of a trainer: this rank's shard of a data set, in batches.

use super::Trainer;
use burn::data::{
    dataloader::batcher::Batcher,
    dataset::{Dataset, transform::SelectionDataset},
};
use burn::train::LearnerModel;
use collective::{
    World,
    loader::{DistributedLoader, ShardedLoader},
    metric::StepOutput,
    sampler::DistributedSampler,
    strategy::{TrainInput, TrainedOutput, ValidInput, ValidOutput},
};
use std::sync::Arc;

type TrainLoader<M> = Arc<dyn DistributedLoader<TrainInput<M>>>;
type ValidLoader<M> = Arc<dyn DistributedLoader<ValidInput<M>>>;

/// The loaders of a run: training, test and, with `--valid-split`, validation.
pub struct Loaders<M: LearnerModel> {
    pub(super) train: TrainLoader<M>,
    pub(super) valid: Option<ValidLoader<M>>,
    pub(super) test: ValidLoader<M>,
}

impl<M: LearnerModel> Loaders<M> {
    /// Loaders without a validation set.
    pub fn new(train: TrainLoader<M>, test: ValidLoader<M>) -> Self {
        Self { train, valid: None, test }
    }

    /// Evaluates `valid` after every epoch, and the test set only at the end.
    pub fn with_validation(mut self, valid: Option<ValidLoader<M>>) -> Self {
        self.valid = valid;
        self
    }

    /// The set that is evaluated after every epoch.
    pub(super) fn evaluated(&self) -> ValidLoader<M> {
        self.valid.as_ref().unwrap_or(&self.test).clone()
    }
}

impl<M> Trainer<'_, M>
where
    M: LearnerModel,
    TrainedOutput<M>: StepOutput,
    ValidOutput<M>: StepOutput,
{
    /// Loaders of batches of `--batch-size` per rank. Training samples are shuffled every epoch unless
    /// `--no-shuffle` is given, and `--valid-split` holds out a part of them; the test set keeps its order.
    pub fn loaders<I, D, T, B>(&self, train: D, test: T, batcher: B) -> Loaders<M>
    where
        I: Clone + Send + Sync + 'static,
        D: Dataset<I> + 'static,
        T: Dataset<I> + 'static,
        B: Batcher<I, TrainInput<M>> + Batcher<I, ValidInput<M>> + 'static,
        TrainInput<M>: Send + 'static,
        ValidInput<M>: Send + 'static,
    {
        let batcher = Arc::new(batcher);
        let (train, valid) = self.split(train);
        let evaluated =
            |dataset| -> ValidLoader<M> { Arc::new(self.sharded(dataset, batcher.clone(), None)) };
        let valid = valid.map(|valid| evaluated(Arc::new(valid)));
        let test = evaluated(Arc::new(test));
        let train = self.sharded(Arc::new(train), batcher.clone(), self.shuffle_seed());
        Loaders::new(Arc::new(train), test).with_validation(valid)
    }

    /// Divides a training set into the samples to train on and those that `--valid-split` holds out, which depend on
    /// `--seed` only.
    pub fn split<I, D>(&self, dataset: D) -> (SelectionDataset<D, I>, Option<SelectionDataset<D, I>>)
    where
        I: Clone + Send + Sync,
        D: Dataset<I>,
    {
        let (train, valid) = split_indices(dataset.len(), self.args.valid_split, self.args.seed);
        let dataset = Arc::new(dataset);
        let select = |indices| SelectionDataset::from_indices_unchecked(dataset.clone(), indices);
        let valid = (!valid.is_empty()).then(|| select(valid));
        (select(train), valid)
    }

    /// Shuffling seed of the training set; `None` with `--no-shuffle`.
    pub fn shuffle_seed(&self) -> Option<u64> {
        (!self.args.no_shuffle).then_some(self.args.seed)
    }

    /// Creates a loader of batches of any type, shuffled if there is a seed.
    pub fn sharded<I, O>(
        &self,
        dataset: Arc<dyn Dataset<I>>,
        batcher: Arc<dyn Batcher<I, O>>,
        seed: Option<u64>,
    ) -> ShardedLoader<I, O>
    where
        I: Clone + Send + Sync + 'static,
        O: Send + 'static,
    {
        let (size, workers) = (self.args.batch_size, self.args.workers);
        ShardedLoader::new(dataset, batcher, self.context.world(), size, seed, workers)
    }
}

/// The samples to train on and those held out, each in the order of the data set.
fn split_indices(samples: usize, fraction: f64, seed: u64) -> (Vec<usize>, Vec<usize>) {
    let held_out = match (samples as f64 * fraction).round() as usize {
        0 if fraction > 0.0 => 1,
        count => count,
    };
    // Epoch 0 is none that is trained, so that the order of the first epoch is another one.
    let mut order = DistributedSampler::new(samples, World { rank: 0, size: 1 }, Some(seed)).order(0);
    let mut train = order.split_off(held_out.min(samples.saturating_sub(1)));
    order.sort_unstable();
    train.sort_unstable();
    (train, order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_trained_or_held_out() {
        let (train, valid) = split_indices(1000, 0.2, 7);
        assert_eq!((train.len(), valid.len()), (800, 200));
        let mut all = [train.clone(), valid.clone()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        assert!(train.is_sorted() && valid.is_sorted());
        assert_ne!(valid, split_indices(1000, 0.2, 8).1);
        // Drawn from the whole set: about a fifth of each half.
        let first = valid.iter().filter(|index| **index < 500).count();
        assert!((70..130).contains(&first), "{first}");
    }

    #[test]
    fn neither_part_is_empty() {
        for (samples, fraction) in [(2, 0.001), (2, 0.999), (10, 0.999), (100, 0.0001)] {
            let (train, valid) = split_indices(samples, fraction, 1);
            assert!(!train.is_empty() && !valid.is_empty(), "{samples} {fraction}");
        }
        assert_eq!(split_indices(5, 0.0, 1), (vec![0, 1, 2, 3, 4], vec![]));
    }
}
