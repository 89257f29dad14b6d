//! The data loader over a [`DistributedSampler`](crate::sampler::DistributedSampler): batches of one rank's part of an
//! epoch, built ahead on worker threads and delivered in order.

mod builder;
mod burn_view;
mod finish;
mod sharded;
mod workers;

pub use builder::ShardedLoaderBuilder;
pub use finish::{Finish, FinishedLoader};
pub use sharded::ShardedLoader;

use burn::data::{dataloader::DataLoader, dataset::DatasetError};
use burn::tensor::Device;

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
