//! Data loaders of a trainer: this rank's shard of a data set, in batches.

use super::Trainer;
use crate::data::{Tokens, WindowBatcher, Windows, shift, window_starts};
use burn::data::{
    dataloader::batcher::Batcher,
    dataset::{Dataset, transform::SelectionDataset},
};
use burn::tensor::Device;
use burn::train::LearnerModel;
use collective::{
    World,
    loader::{DistributedLoader, ShardedLoader, ShardedLoaderBuilder},
    sampler::DistributedSampler,
    strategy::{StepModel, TrainInput, ValidInput},
};
use std::sync::Arc;

type TrainLoader<M> = Arc<dyn DistributedLoader<TrainInput<M>>>;
type ValidLoader<M> = Arc<dyn DistributedLoader<ValidInput<M>>>;

/// The loaders of a run: training, test and, with `--valid-split`, validation.
pub struct Loaders<M: LearnerModel> {
    pub train: TrainLoader<M>,
    /// Evaluated after every epoch; the test set is then evaluated only at the end.
    pub valid: Option<ValidLoader<M>>,
    pub test: ValidLoader<M>,
}

impl<M: LearnerModel> Loaders<M> {
    /// Verifies that no set is empty.
    pub(super) fn require_samples(&self) -> collective::Result<()> {
        self.train.require_samples("training")?;
        self.valid.iter().try_for_each(|valid| valid.require_samples("validation"))?;
        self.test.require_samples("test")
    }

    /// The set that is evaluated after every epoch.
    pub(super) fn evaluated(&self) -> ValidLoader<M> {
        self.valid.as_ref().unwrap_or(&self.test).clone()
    }
}

impl<M: StepModel> Trainer<'_, M> {
    /// Loaders of batches of `--batch-size` per rank. Training samples are shuffled every epoch unless
    /// `--no-shuffle` is given, and `--valid-split` holds out a part of them; the test set keeps its order.
    pub fn loaders<I, D, T, B>(&self, train: D, test: T, batcher: B) -> Loaders<M>
    where
        I: Clone + Send + Sync + 'static,
        D: Dataset<I> + 'static,
        T: Dataset<I> + 'static,
        B: Batcher<I, TrainInput<M>> + Batcher<I, ValidInput<M>> + 'static,
    {
        let (batcher, world) = (Shared(Arc::new(batcher)), self.context.world());
        let (train, valid) = self.split(train);
        let train = self.sharded(train, batcher.clone(), self.shuffle_seed()).build(world);
        let valid = valid.map(|valid| self.sharded(valid, batcher.clone(), None).build(world));
        let test = self.sharded(test, batcher, None).build(world);
        Loaders {
            train: Arc::new(train),
            valid: valid.map(|valid| Arc::new(valid) as _),
            test: Arc::new(test),
        }
    }

    /// Divides a training set into the samples to train on and those that `--valid-split` holds out, which depend on
    /// `--seed` only.
    pub fn split<I, D>(&self, dataset: D) -> (SelectionDataset<D, I>, Option<SelectionDataset<D, I>>)
    where
        I: Clone + Send + Sync,
        D: Dataset<I>,
    {
        let (train, valid) = self.split_indices(dataset.len());
        let dataset = Arc::new(dataset);
        let select = |indices| SelectionDataset::from_indices_unchecked(dataset.clone(), indices);
        let valid = (self.args.valid_split > 0.0).then(|| select(valid));
        (select(train), valid)
    }

    /// Indices of the samples to train on and of those that `--valid-split` holds out, both in ascending order.
    ///
    /// They depend on `--seed` only.
    pub fn split_indices(&self, samples: usize) -> (Vec<usize>, Vec<usize>) {
        split_indices(samples, self.args.valid_split, self.args.seed)
    }

    /// Shuffling seed of the training set; `None` with `--no-shuffle`.
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

    /// Loader of the windows of a text for training, each of `block_size` tokens and their successors.
    ///
    /// Windows do not overlap. Unless `--no-shuffle` is given, their order and the position of the first window
    /// depend on `--seed` and the epoch.
    pub fn train_windows(&self, tokens: &Tokens, block_size: usize) -> ShardedLoader<usize, Windows> {
        let windows = window_starts(tokens.len(), block_size, block_size.saturating_sub(1));
        let batcher = WindowBatcher { tokens: tokens.clone(), block_size };
        let loader = self.sharded(windows, batcher, self.shuffle_seed());
        let loader = match self.shuffle_seed() {
            Some(seed) => loader.transform(move |epoch, start: usize| start + shift(seed, epoch, block_size)),
            None => loader,
        };
        loader.build(self.context.world())
    }

    /// Loader of all windows of a text in their order, for evaluation.
    pub fn windows(&self, tokens: &Tokens, block_size: usize) -> ShardedLoader<usize, Windows> {
        let batcher = WindowBatcher { tokens: tokens.clone(), block_size };
        self.sharded(window_starts(tokens.len(), block_size, 0), batcher, None).build(self.context.world())
    }
}

/// One batcher for several loaders.
struct Shared<B>(Arc<B>);

impl<B> Clone for Shared<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I, O, B: Batcher<I, O>> Batcher<I, O> for Shared<B> {
    fn batch(&self, samples: Vec<I>, device: &Device) -> O {
        self.0.batch(samples, device)
    }
}

/// The samples to train on and those held out, each in the order of the data set.
fn split_indices(samples: usize, fraction: f64, seed: u64) -> (Vec<usize>, Vec<usize>) {
    let held_out = match (samples as f64 * fraction).round() as usize {
        0 if fraction > 0.0 => 1,
        count => count,
    };
    // Training begins with epoch 1, whose order is a different one.
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
