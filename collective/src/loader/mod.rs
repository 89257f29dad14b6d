//! The data loader over a [`DistributedSampler`]: batches of one rank's part of an epoch, built
//! ahead on worker threads and delivered in order.

mod burn_view;
mod finish;
mod workers;

pub use finish::{Finish, FinishedLoader};

use crate::{World, sampler::DistributedSampler};
use burn::data::{
    dataloader::{DataLoader, batcher::Batcher},
    dataset::{Dataset, DatasetError},
};
use burn::tensor::Device;
use std::sync::{Arc, atomic::AtomicUsize};
use workers::Batch;

/// One rank's part of a global batch.
#[derive(Clone, Debug)]
pub struct ShardedBatch<O> {
    /// The batch.
    pub item: O,
    /// Samples that count: 0 for padding, a repeated sample of weight zero on a rank that has no sample left while
    /// others finish an uneven epoch.
    pub samples: usize,
    /// Samples of the global batch, over all ranks.
    pub global_samples: usize,
    /// Whether it is the last batch of the epoch, on every rank.
    pub last: bool,
}

impl<O> ShardedBatch<O> {
    /// A whole batch of `samples` on a single device.
    pub fn whole(item: O, samples: usize) -> Self {
        Self { item, samples, global_samples: samples, last: false }
    }

    /// The same batch with another item.
    pub fn map<T>(self, change: impl FnOnce(O) -> T) -> ShardedBatch<T> {
        let Self { item, samples, global_samples, last } = self;
        ShardedBatch { item: change(item), samples, global_samples, last }
    }
}

/// Iterator over this rank's batches of one epoch.
pub type ShardedBatches<O> = Box<dyn Iterator<Item = Result<ShardedBatch<O>, DatasetError>> + Send>;

/// The finished part of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochProgress {
    /// Batches of each rank, at the world size at which they were trained.
    pub batches: usize,
    /// Samples over all ranks, at the start of the epoch's global order.
    pub samples: usize,
}

/// A loader that can start at any epoch and step.
pub trait DistributedLoader<O>: DataLoader<O> {
    /// The batches of `epoch` (from 1), without the first `skip`, on `device`.
    fn epoch(&self, epoch: usize, skip: usize, device: &Device) -> ShardedBatches<O>;
    /// Steps in an epoch, the same on every rank.
    fn steps(&self) -> usize;
    /// Samples in an epoch over all ranks.
    fn samples(&self) -> usize;
    /// Names and values of other settings that must be the same on all ranks, such as the batch size. They are compared
    /// before the first step.
    fn settings(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
    /// The rest of `epoch`, which may have started at another world size. A loader without a global order
    /// skips the finished batches, which is right at the same world size only.
    fn rest(&self, epoch: usize, done: EpochProgress, device: &Device) -> ShardedBatches<O> {
        self.epoch(epoch, done.batches, device)
    }
    /// Steps in what is left of an epoch.
    fn steps_left(&self, done: EpochProgress) -> usize {
        self.steps().saturating_sub(done.batches)
    }
}

/// Changes a sample in an epoch (from 1), before it is put into a batch.
pub type Transform<I> = Arc<dyn Fn(usize, I) -> I + Send + Sync>;

/// A Burn data set and batcher, divided over the ranks of a world.
pub struct ShardedLoader<I, O> {
    dataset: Arc<dyn Dataset<I>>,
    batcher: Arc<dyn Batcher<I, O>>,
    sampler: DistributedSampler,
    batch_size: usize,
    workers: usize,
    device: Device,
    transform: Option<Transform<I>>,
    /// For Burn's own strategies, which ask for "the next epoch" without a number.
    next_epoch: AtomicUsize,
}

impl<I, O> ShardedLoader<I, O> {
    /// Creates a loader of `batch_size` samples a rank; `seed: None` keeps file order; `workers: 0` builds
    /// batches on the calling thread.
    ///
    /// # Panics
    /// If `batch_size` is 0.
    pub fn new(
        dataset: Arc<dyn Dataset<I>>,
        batcher: Arc<dyn Batcher<I, O>>,
        world: World,
        batch_size: usize,
        seed: Option<u64>,
        workers: usize,
    ) -> Self {
        assert!(batch_size > 0, "batch_size must be at least 1");
        let sampler = DistributedSampler::new(dataset.len(), world, seed);
        let (device, next_epoch) = (Device::default(), AtomicUsize::new(1));
        Self { dataset, batcher, sampler, batch_size, workers, device, transform: None, next_epoch }
    }

    /// Puts every sample through `transform`, on the threads that build batches. For the same epochs to
    /// give the same samples, it must depend on nothing else than its arguments.
    pub fn with_transform(mut self, transform: Transform<I>) -> Self {
        self.transform = Some(transform);
        self
    }
}

impl<I: Send + 'static, O: Send + 'static> ShardedLoader<I, O> {
    /// How a worker makes the batch of `indices`.
    fn builder(
        &self,
        epoch: usize,
        device: &Device,
    ) -> impl Fn(&Batch) -> Result<ShardedBatch<O>, DatasetError> + Clone + Send + 'static {
        let (dataset, batcher, device) = (self.dataset.clone(), self.batcher.clone(), device.clone());
        let transform = self.transform.clone();
        move |Batch { indices, global, last }| {
            // A rank without samples left still takes part in the step, with weight zero.
            let padded = if indices.is_empty() { &[0][..] } else { indices.as_slice() };
            let mut samples = dataset.get_many(padded.to_vec())?;
            if let Some(transform) = &transform {
                samples = samples.into_iter().map(|sample| transform(epoch, sample)).collect();
            }
            let item = batcher.batch(samples, &device);
            Ok(ShardedBatch { item, samples: indices.len(), global_samples: *global, last: *last })
        }
    }

    /// The batches of `epoch` after its first `done` samples, without the first `skip`.
    fn sharded_batches(&self, epoch: usize, done: usize, skip: usize, device: &Device) -> ShardedBatches<O> {
        let batches = self.sampler.batches_after(epoch, done, self.batch_size);
        let steps = batches.len();
        let global = |step| self.sampler.global_batch(done, step, self.batch_size);
        let batches = batches.into_iter().enumerate();
        let batches =
            batches.map(|(step, indices)| Batch { indices, global: global(step), last: step + 1 == steps });
        workers::build(batches.skip(skip).collect(), self.workers, self.builder(epoch, device))
    }
}

impl<I: Send + 'static, O: Send + 'static> DistributedLoader<O> for ShardedLoader<I, O> {
    fn epoch(&self, epoch: usize, skip: usize, device: &Device) -> ShardedBatches<O> {
        self.sharded_batches(epoch, 0, skip, device)
    }

    fn steps(&self) -> usize {
        self.sampler.steps(self.batch_size)
    }

    fn samples(&self) -> usize {
        self.sampler.len()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let order =
            self.sampler.seed().map_or_else(|| "as in the file".into(), |seed| format!("shuffled by {seed}"));
        vec![("batch size", self.batch_size.to_string()), ("order", order)]
    }

    fn rest(&self, epoch: usize, done: EpochProgress, device: &Device) -> ShardedBatches<O> {
        self.sharded_batches(epoch, done.samples, 0, device)
    }

    fn steps_left(&self, done: EpochProgress) -> usize {
        self.sampler.steps_after(done.samples, self.batch_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::data::dataset::InMemDataset;

    struct Keep;
    impl Batcher<usize, Vec<usize>> for Keep {
        fn batch(&self, items: Vec<usize>, _: &Device) -> Vec<usize> {
            items
        }
    }

    fn loader(len: usize, rank: usize, size: usize, workers: usize) -> ShardedLoader<usize, Vec<usize>> {
        let data = Arc::new(InMemDataset::new((0..len).collect()));
        ShardedLoader::new(data, Arc::new(Keep), World { rank, size }, 4, Some(3), workers)
    }

    fn shares(l: &ShardedLoader<usize, Vec<usize>>, epoch: usize, skip: usize) -> Vec<(Vec<usize>, usize)> {
        l.epoch(epoch, skip, &Device::default())
            .map(|s| s.map(|s| (s.item, s.samples)).expect("in memory"))
            .collect()
    }

    #[test]
    fn workers_change_nothing_but_the_thread() {
        let inline = shares(&loader(103, 1, 3, 0), 2, 0);
        for workers in [1, 2, 5, 40] {
            assert_eq!(inline, shares(&loader(103, 1, 3, workers), 2, 0));
        }
        assert_eq!(inline[4..], shares(&loader(103, 1, 3, 2), 2, 4));
    }

    #[test]
    fn the_rest_of_an_epoch_is_what_skipping_leaves_and_any_world_can_take_it() {
        let two = loader(103, 1, 2, 0);
        let done = EpochProgress { batches: 5, samples: 5 * 4 * 2 };
        let rest: Vec<_> =
            two.rest(2, done, &Device::default()).map(|s| s.expect("in memory").item).collect();
        let skipped: Vec<_> = shares(&two, 2, 5).into_iter().map(|(item, _)| item).collect();
        assert_eq!((rest.len(), &rest), (two.steps_left(done), &skipped));
        let samples = |l: &ShardedLoader<usize, Vec<usize>>| -> usize {
            l.rest(2, done, &Device::default()).map(|s| s.expect("in memory").samples).sum()
        };
        assert_eq!((0..3).map(|rank| samples(&loader(103, rank, 3, 1))).sum::<usize>(), 63);
    }

    #[test]
    fn a_transform_sees_the_epoch_on_every_path() {
        let plus = |l: ShardedLoader<usize, Vec<usize>>| {
            l.with_transform(Arc::new(|epoch, sample| sample + 1000 * epoch))
        };
        let (plain, changed) = (loader(30, 1, 2, 0), plus(loader(30, 1, 2, 1)));
        let added = |all: Vec<(Vec<usize>, usize)>, by: usize| -> Vec<(Vec<usize>, usize)> {
            all.into_iter().map(|(items, n)| (items.into_iter().map(|item| item + by).collect(), n)).collect()
        };
        assert_eq!(shares(&changed, 3, 1), added(shares(&plain, 3, 1), 3000));
        let first: Vec<_> = changed.to_device(&Device::default()).iter().map(|b| b.expect("here")).collect();
        assert_eq!(first[0], added(shares(&plain, 1, 0), 1000)[0].0);
    }

    #[test]
    fn uneven_ranks_take_the_same_steps_and_padding_weighs_nothing() {
        // 13 samples over 3 ranks of batch 4: the second global batch holds one sample.
        let last = loader(13, 1, 3, 1).epoch(1, 0, &Device::default()).map(|b| b.expect("in memory").last);
        assert_eq!(last.collect::<Vec<_>>(), [false, true]);
        let all: Vec<_> = (0..3).map(|r| shares(&loader(13, r, 3, 1), 1, 0)).collect();
        assert!(all.iter().all(|s| s.len() == 2));
        assert_eq!(all.iter().flatten().map(|(_, samples)| samples).sum::<usize>(), 13);
        assert_eq!(all[2][1].1, 0);
        assert_eq!(all[2][1].0.len(), 1);
    }

    #[test]
    fn burns_own_view_has_each_sample_once_and_its_slices_shrink() {
        let l = loader(13, 2, 3, 1);
        assert_eq!(l.num_items(), 4);
        assert_eq!(l.iter().map(|b| b.expect("in memory").len()).sum::<usize>(), 4);
        let sliced: Vec<usize> = l.slice(5, 11).iter().flat_map(|b| b.expect("in memory")).collect();
        assert_eq!(sliced.len(), 2);
        assert!(sliced.iter().all(|i| (5..11).contains(i)));
    }

    struct Fragile;
    impl Batcher<usize, Vec<usize>> for Fragile {
        fn batch(&self, items: Vec<usize>, _: &Device) -> Vec<usize> {
            assert!(!items.contains(&17), "sample 17 is cursed");
            items
        }
    }

    #[test]
    fn a_worker_that_panics_is_an_error_not_the_end_of_the_epoch() {
        let data = Arc::new(InMemDataset::new((0..40).collect()));
        let l = ShardedLoader::new(data, Arc::new(Fragile), World { rank: 0, size: 1 }, 4, None, 1);
        let results: Vec<_> = l.epoch(1, 0, &Device::default()).collect();
        assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 4);
        assert_eq!(results.len(), 10);
    }

    #[test]
    fn dropping_the_iterator_early_ends_the_workers() {
        let l = loader(1000, 0, 1, 2);
        let mut it = l.epoch(1, 0, &Device::default());
        assert!(it.next().is_some());
        drop(it);
        assert_eq!(shares(&l, 1, 0).len(), 250);
    }
}
