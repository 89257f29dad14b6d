//! The data loader over a [`DistributedSampler`]: batches of one rank's share of an epoch, built
//! ahead on worker threads and delivered in order.

use crate::{World, sampler::DistributedSampler};
use burn::data::{
    dataloader::{DataLoader, DataLoaderIterator, Progress, batcher::Batcher},
    dataset::{Dataset, DatasetError},
};
use burn::tensor::Device;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

/// Batches a worker may be ahead of the training thread.
const AHEAD: usize = 2;

/// A batch and how many of its samples count.
pub struct Share<O> {
    pub item: O,
    /// 0 for a batch that only keeps this rank in step while others finish an uneven epoch: it
    /// holds one repeated sample, which must weigh nothing.
    pub samples: usize,
    /// Samples of this step over all ranks.
    pub global_samples: usize,
}

/// Iterator over this rank's share of one epoch.
pub type Shares<O> = Box<dyn Iterator<Item = Result<Share<O>, DatasetError>> + Send>;

/// A loader that can be asked for any epoch, from any step on.
pub trait DistributedLoader<O>: DataLoader<O> {
    /// The batches of `epoch` (from 1), without the first `skip`, on `device`.
    fn epoch(&self, epoch: usize, skip: usize, device: &Device) -> Shares<O>;
    /// Steps in an epoch, the same on every rank.
    fn steps(&self) -> usize;
    /// Samples in an epoch over all ranks.
    fn samples(&self) -> usize;
}

/// A Burn data set and batcher, shared out over the ranks of a world.
pub struct ShardedLoader<I, O> {
    dataset: Arc<dyn Dataset<I>>,
    batcher: Arc<dyn Batcher<I, O>>,
    sampler: DistributedSampler,
    batch_size: usize,
    workers: usize,
    device: Device,
    /// For Burn's own strategies, which ask for "the next epoch" without a number.
    next_epoch: AtomicUsize,
}

impl<I, O> ShardedLoader<I, O> {
    /// `batch_size` counts samples a rank; `seed: None` keeps file order; `workers: 0` builds
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
        Self { dataset, batcher, sampler, batch_size, workers, device, next_epoch }
    }
}

impl<I: Send + 'static, O: Send + 'static> ShardedLoader<I, O> {
    /// How a worker makes the batch of `indices`.
    fn builder(&self, device: &Device) -> impl Fn(&Batch) -> Result<Share<O>, DatasetError> + Send + 'static {
        let (dataset, batcher, device) = (self.dataset.clone(), self.batcher.clone(), device.clone());
        move |Batch { indices, global }| {
            // A rank without samples left still takes part in the step, with weight zero.
            let padded = if indices.is_empty() { &[0][..] } else { indices.as_slice() };
            let item = batcher.batch(dataset.get_many(padded.to_vec())?, &device);
            Ok(Share { item, samples: indices.len(), global_samples: *global })
        }
    }
}

impl<I: Send + 'static, O: Send + 'static> DistributedLoader<O> for ShardedLoader<I, O> {
    fn epoch(&self, epoch: usize, skip: usize, device: &Device) -> Shares<O> {
        let batches: Vec<Batch> = (self.sampler.batches(epoch, self.batch_size).into_iter().enumerate())
            .map(|(step, indices)| Batch {
                indices,
                global: self.sampler.global_batch(step, self.batch_size),
            })
            .skip(skip)
            .collect();
        if self.workers == 0 {
            let build = self.builder(device);
            return Box::new(batches.into_iter().map(move |batch| build(&batch)));
        }
        // Worker w builds batches w, w + workers, …, each through its own channel, so that reading
        // the channels in turn gives the batches in order. A dropped iterator closes the channels,
        // which ends the workers.
        let queues = (0..self.workers)
            .map(|worker| {
                let build = self.builder(device);
                let mine: Vec<_> = batches.iter().skip(worker).step_by(self.workers).cloned().collect();
                let (send, receive) = sync_channel(AHEAD);
                thread::spawn(move || mine.iter().all(|batch| send.send(build(batch)).is_ok()));
                receive
            })
            .collect();
        Box::new(InTurn { queues, left: batches.len() })
    }

    fn steps(&self) -> usize {
        self.sampler.steps(self.batch_size)
    }

    fn samples(&self) -> usize {
        self.sampler.len()
    }
}

/// The samples of one batch, and how many there are over all ranks.
#[derive(Clone)]
struct Batch {
    indices: Vec<usize>,
    global: usize,
}

/// Reads the workers' channels in turn.
struct InTurn<O> {
    queues: VecDeque<Receiver<Result<Share<O>, DatasetError>>>,
    left: usize,
}

impl<O> Iterator for InTurn<O> {
    type Item = Result<Share<O>, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let item = self.queues.front()?.recv();
        self.queues.rotate_left(1);
        // A worker that panicked must not look like the end of the epoch: other ranks go on.
        Some(item.unwrap_or_else(|_| Err(DatasetError::new(std::io::Error::other("a data worker panicked")))))
    }
}

/// So that Burn's own strategies can use the same loader.
impl<I: Send + 'static, O: Send + 'static> DataLoader<O> for ShardedLoader<I, O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        let epoch = self.next_epoch.fetch_add(1, Ordering::Relaxed);
        Box::new(Counted { shares: self.epoch(epoch, 0, &self.device), done: 0, total: self.num_items() })
    }

    /// Samples of this rank.
    fn num_items(&self) -> usize {
        self.sampler.batches(1, self.batch_size).iter().map(Vec::len).sum()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        Arc::new(Self {
            device: device.clone(),
            next_epoch: AtomicUsize::new(1),
            ..self.shallow(self.sampler)
        })
    }

    /// The samples `start..end` of the data set, still shared out over the world.
    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        let dataset = Arc::new(Window { whole: self.dataset.clone(), start, len: end - start });
        let sampler = self.sampler.with_len(end - start);
        Arc::new(Self { dataset, ..self.shallow(sampler) })
    }
}

impl<I, O> ShardedLoader<I, O> {
    fn shallow(&self, sampler: DistributedSampler) -> Self {
        Self {
            dataset: self.dataset.clone(),
            batcher: self.batcher.clone(),
            sampler,
            batch_size: self.batch_size,
            workers: self.workers,
            device: self.device.clone(),
            next_epoch: AtomicUsize::new(1),
        }
    }
}

struct Counted<O> {
    shares: Shares<O>,
    done: usize,
    total: usize,
}

impl<O> Iterator for Counted<O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.shares.next()? {
                // Only this project's strategies know that a padding batch weighs nothing.
                Ok(share) if share.samples == 0 => continue,
                Ok(share) => {
                    self.done += share.samples;
                    return Some(Ok(share.item));
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl<O> DataLoaderIterator<O> for Counted<O> {
    fn progress(&self) -> Progress {
        Progress::new(self.done, self.total, Some("items".into()))
    }
}

/// A contiguous part of a data set.
struct Window<I> {
    whole: Arc<dyn Dataset<I>>,
    start: usize,
    len: usize,
}

impl<I> Dataset<I> for Window<I> {
    fn get(&self, index: usize) -> Result<I, DatasetError> {
        self.whole.get(self.start + index)
    }

    fn len(&self) -> usize {
        self.len
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
    fn uneven_ranks_take_the_same_steps_and_padding_weighs_nothing() {
        // 13 samples over 3 ranks of batch 4: the second global batch holds one sample.
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
