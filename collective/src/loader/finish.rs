//! A loader whose batches are finished on the thread that trains.

use super::{DistributedLoader, EpochProgress, ShardedBatches, ShardedLoader};
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::tensor::Device;
use std::sync::Arc;

/// Creates a batch on a device from a batch that a worker has prepared on the host.
pub type Finish<H, O> = Arc<dyn Fn(H, &Device) -> O + Send + Sync>;

/// A [`ShardedLoader`] of host batches, each of which is finished on the device.
///
/// Workers assemble bytes. The thread that trains uploads them and launches the kernels that make a batch, on its own
/// stream, so that it does not wait for another stream.
pub struct FinishedLoader<I, H, O> {
    host: Arc<ShardedLoader<I, H>>,
    finish: Finish<H, O>,
    /// Used by Burn's own strategies only.
    device: Device,
}

impl<I, H, O> FinishedLoader<I, H, O> {
    /// Creates a loader that applies `finish` to each batch of `host`.
    pub fn new(host: ShardedLoader<I, H>, finish: Finish<H, O>) -> Self {
        Self { host: Arc::new(host), finish, device: Device::default() }
    }
}

impl<I, H, O> FinishedLoader<I, H, O>
where
    I: Send + 'static,
    H: Send + 'static,
    O: Send + 'static,
{
    fn finished(&self, batches: ShardedBatches<H>, device: &Device) -> ShardedBatches<O> {
        let (finish, device) = (self.finish.clone(), device.clone());
        Box::new(batches.map(move |batch| batch.map(|batch| batch.map(|item| finish(item, &device)))))
    }
}

impl<I, H, O> DistributedLoader<O> for FinishedLoader<I, H, O>
where
    I: Send + 'static,
    H: Send + 'static,
    O: Send + 'static,
{
    fn epoch(&self, epoch: usize, skip: usize, device: &Device) -> ShardedBatches<O> {
        self.finished(self.host.epoch(epoch, skip, device), device)
    }

    fn steps(&self) -> usize {
        self.host.steps()
    }

    fn samples(&self) -> usize {
        self.host.samples()
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        self.host.settings()
    }

    fn rest(&self, epoch: usize, done: EpochProgress, device: &Device) -> ShardedBatches<O> {
        self.finished(self.host.rest(epoch, done, device), device)
    }

    fn steps_left(&self, done: EpochProgress) -> usize {
        self.host.steps_left(done)
    }
}

/// Allows Burn's own strategies to use the loader.
impl<I, H, O> DataLoader<O> for FinishedLoader<I, H, O>
where
    I: Send + 'static,
    H: Send + 'static,
    O: Send + 'static,
{
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        Box::new(Finished { host: self.host.iter(), finish: &*self.finish, device: &self.device })
    }

    fn num_items(&self) -> usize {
        self.host.num_items()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        Arc::new(Self { host: self.host.clone(), finish: self.finish.clone(), device: device.clone() })
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        let host = Arc::new(self.host.window(start, end));
        Arc::new(Self { host, finish: self.finish.clone(), device: self.device.clone() })
    }
}

struct Finished<'a, H, O> {
    host: Box<dyn DataLoaderIterator<H> + 'a>,
    finish: &'a (dyn Fn(H, &Device) -> O + Send + Sync),
    device: &'a Device,
}

impl<H, O> Iterator for Finished<'_, H, O> {
    type Item = Result<O, burn::data::dataset::DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.host.next()?.map(|batch| (self.finish)(batch, self.device)))
    }
}

impl<H, O> DataLoaderIterator<O> for Finished<'_, H, O> {
    fn progress(&self) -> Progress {
        self.host.progress()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::World;
    use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
    use std::thread::{self, ThreadId};

    struct Keep;
    impl Batcher<usize, (Vec<usize>, ThreadId)> for Keep {
        fn batch(&self, items: Vec<usize>, _: &Device) -> (Vec<usize>, ThreadId) {
            (items, thread::current().id())
        }
    }

    type Batch = (Vec<usize>, ThreadId, ThreadId);

    fn loader(workers: usize) -> FinishedLoader<usize, (Vec<usize>, ThreadId), Batch> {
        let data = InMemDataset::new((0..13).collect());
        let host = ShardedLoader::builder(data, Keep).batch_size(4).shuffle(3).num_workers(workers);
        let host = host.build(World { rank: 2, size: 3 });
        FinishedLoader::new(host, Arc::new(|(items, worker), _| (items, worker, thread::current().id())))
    }

    #[test]
    fn batches_are_finished_on_the_thread_that_takes_them() {
        let (device, here) = (Device::flex(), thread::current().id());
        for share in loader(1).epoch(2, 0, &device) {
            let (_, worker, finisher) = share.expect("in memory").item;
            assert!(finisher == here && worker != here);
        }
    }

    #[test]
    fn batches_are_those_of_the_host_loader() {
        let (device, all) = (Device::flex(), loader(2));
        let mine = all.epoch(1, 0, &device).map(|s| s.expect("in memory"));
        let host = all.host.epoch(1, 0, &device).map(|s| s.expect("in memory"));
        assert!(mine.map(|s| (s.samples, s.global_samples)).eq(host.map(|s| (s.samples, s.global_samples))));
        assert_eq!((all.steps(), all.samples()), (2, 13));
        let done = EpochProgress { batches: 1, samples: 12 };
        assert_eq!(all.rest(1, done, &device).count(), all.steps_left(done));
        assert_eq!(all.iter().map(|b| b.expect("in memory").0.len()).sum::<usize>(), all.num_items());
        assert_eq!(all.slice(0, 6).num_items(), 2);
    }
}
