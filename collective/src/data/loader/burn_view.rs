//! Burn's `DataLoader` interface of the sharded loader.

use super::{DistributedLoader, ShardedBatches, ShardedLoader};
use crate::data::sampler::DistributedSampler;
use burn::data::{
    dataloader::{DataLoader, DataLoaderIterator, Progress},
    dataset::DatasetError,
};
use burn::tensor::Device;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Allows Burn's own strategies to use the loader.
impl<I: Send + 'static, O: Send + 'static> DataLoader<O> for ShardedLoader<I, O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        let epoch = self.next_epoch.fetch_add(1, Ordering::Relaxed);
        Box::new(Counted { batches: self.epoch(epoch, 0, &self.device), done: 0, total: self.num_items() })
    }

    /// Number of samples of this rank.
    fn num_items(&self) -> usize {
        self.sampler.batches(1, self.batch_size).iter().map(Vec::len).sum()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        Arc::new(Self { device: device.clone(), ..self.shallow(self.sampler.clone()) })
    }

    /// The samples `start..end` of the data set, still divided over the world.
    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        Arc::new(Self { first: self.first + start, ..self.shallow(self.sampler.slice(start, end)) })
    }
}

impl<I, O> ShardedLoader<I, O> {
    fn shallow(&self, sampler: DistributedSampler) -> Self {
        Self {
            dataset: self.dataset.clone(),
            batches: self.batches.clone(),
            sampler,
            first: self.first,
            batch_size: self.batch_size,
            device: self.device.clone(),
            next_epoch: AtomicUsize::new(1),
        }
    }
}

struct Counted<O> {
    batches: ShardedBatches<O>,
    done: usize,
    total: usize,
}

impl<O> Iterator for Counted<O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Burn's strategies would count padding.
        let batch = self.batches.find(|batch| batch.as_ref().map_or(true, |batch| batch.samples > 0))?;
        self.done += batch.as_ref().map_or(0, |batch| batch.samples);
        Some(batch.map(|batch| batch.item).map_err(DatasetError::new))
    }
}

impl<O> DataLoaderIterator<O> for Counted<O> {
    fn progress(&self) -> Progress {
        Progress::new(self.done, self.total, Some("items".into()))
    }
}
