//! Loader of one rank's part of a data set.

use super::{DistributedLoader, EpochProgress, ShardedBatch, ShardedBatches, workers::Indices};
use crate::data::sampler::DistributedSampler;
use burn::data::dataset::Dataset;
use burn::tensor::Device;
use std::sync::{Arc, atomic::AtomicUsize};

/// Builds batches of a data set in an epoch (from 1) on a device.
type BuildBatches<I, O> =
    Arc<dyn Fn(Arc<dyn Dataset<I>>, usize, Vec<Indices>, &Device) -> ShardedBatches<O> + Send + Sync>;

/// A Burn data set and batcher, divided over the ranks of a world: see [`builder`](ShardedLoader::builder).
pub struct ShardedLoader<I, O> {
    pub(super) dataset: Arc<dyn Dataset<I>>,
    pub(super) batches: BuildBatches<I, O>,
    pub(super) sampler: DistributedSampler,
    /// Index of the sampler's first sample in the data set.
    pub(super) first: usize,
    pub(super) batch_size: usize,
    pub(super) device: Device,
    /// Epoch counter for Burn's own strategies, which do not pass an epoch.
    pub(super) next_epoch: AtomicUsize,
}

impl<I: Send + 'static, O: 'static> ShardedLoader<I, O> {
    /// The batches of `epoch` after its first `done` samples, without the first `skip`.
    fn sharded_batches(&self, epoch: usize, done: usize, skip: usize, device: &Device) -> ShardedBatches<O> {
        let batches = self.sampler.batches_after(epoch, done, self.batch_size);
        let steps = batches.len();
        let global = |step| self.sampler.global_batch(done, step, self.batch_size);
        let batches = batches.into_iter().enumerate().map(|(step, item)| ShardedBatch {
            samples: item.len(),
            item: item.into_iter().map(|index| self.first + index).collect(),
            global_samples: global(step),
            last: step + 1 == steps,
        });
        (self.batches)(self.dataset.clone(), epoch, batches.skip(skip).collect(), device)
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
        let order = if self.sampler.is_weighted() { format!("{order}, drawn by weights") } else { order };
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
    use crate::{World, data::loader::ShardedLoaderBuilder};
    use burn::data::{
        dataloader::{DataLoader, batcher::Batcher},
        dataset::InMemDataset,
    };
    use std::thread::{self, ThreadId};

    struct Keep;
    impl Batcher<usize, Vec<usize>> for Keep {
        fn batch(&self, items: Vec<usize>, _: &Device) -> Vec<usize> {
            items
        }
    }

    fn builder(len: usize, workers: usize) -> ShardedLoaderBuilder<usize, Vec<usize>> {
        let data = InMemDataset::new((0..len).collect());
        ShardedLoader::builder(data, Keep).batch_size(4).shuffle(3).num_workers(workers)
    }

    fn loader(len: usize, rank: usize, size: usize, workers: usize) -> ShardedLoader<usize, Vec<usize>> {
        builder(len, workers).build(World { rank, size })
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

    struct Built;
    impl Batcher<usize, ThreadId> for Built {
        fn batch(&self, _: Vec<usize>, _: &Device) -> ThreadId {
            thread::current().id()
        }
    }

    #[test]
    fn batches_are_finished_on_the_thread_that_takes_them() {
        let data = InMemDataset::new((0..13).collect::<Vec<usize>>());
        let l = ShardedLoader::builder(data, Built).batch_size(4).num_workers(1);
        let l = l.build_finished(World { rank: 0, size: 1 }, |worker, _| (worker, thread::current().id()));
        let here = thread::current().id();
        for batch in l.epoch(1, 0, &Device::default()) {
            let (worker, finisher) = batch.expect("in memory").item;
            assert!(finisher == here && worker != here);
        }
        assert_eq!(l.slice(0, 6).iter().count(), 2);
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
        let plus = builder(30, 1).transform(|epoch, sample| sample + 1000 * epoch);
        let (plain, changed) = (loader(30, 1, 2, 0), plus.build(World { rank: 1, size: 2 }));
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

    #[test]
    fn without_settings_each_sample_is_a_batch_in_the_order_of_the_data_set() {
        let data: Arc<dyn Dataset<usize>> = Arc::new(InMemDataset::new((0..3).collect()));
        let alone = World { rank: 0, size: 1 };
        for l in
            [ShardedLoader::builder(data.clone(), Keep), ShardedLoader::builder(data, Keep).batch_size(0)]
        {
            let items = shares(&l.build(alone), 1, 0).into_iter().map(|(items, _)| items);
            assert_eq!(items.collect::<Vec<_>>(), [[0], [1], [2]]);
        }
    }

    struct Fragile;
    impl Batcher<usize, Vec<usize>> for Fragile {
        fn batch(&self, items: Vec<usize>, _: &Device) -> Vec<usize> {
            assert!(!items.contains(&17), "sample 17 is cursed");
            items
        }
    }

    #[test]
    fn a_batcher_that_panics_is_an_error_with_the_panics_text() {
        for workers in [0, 1, 3] {
            let data = InMemDataset::new((0..40).collect());
            let alone = World { rank: 0, size: 1 };
            let l = ShardedLoader::builder(data, Fragile).batch_size(4).num_workers(workers).build(alone);
            let results: Vec<_> = l.epoch(1, 0, &Device::default()).collect();
            assert_eq!(results.len(), 10);
            for (index, result) in results.into_iter().enumerate() {
                let error = result.map(drop).err().map(|error| error.to_string());
                assert_eq!(error.is_some(), index == 4, "{error:?}");
                assert!(error.is_none_or(|error| error.contains("panicked: sample 17 is cursed")));
            }
        }
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
