//! Data loader over a [`DistributedSampler`](crate::data::sampler::DistributedSampler).
//!
//! It yields the batches of one rank's part of an epoch in order. Worker threads build them in advance.

mod builder;
mod burn_view;
mod sharded;
mod workers;

pub use builder::ShardedLoaderBuilder;
pub use sharded::ShardedLoader;
pub(super) use workers::start_thread;

use crate::{Error, Result};
use burn::data::{dataloader::DataLoader, dataset::DatasetError};
use burn::tensor::Device;

/// One rank's part of a global batch.
#[derive(Clone, Debug)]
pub struct ShardedBatch<O> {
    /// The batch.
    pub item: O,
    /// Number of samples, without padding.
    ///
    /// Padding is a repeated sample of weight zero on a rank without samples while others finish an uneven epoch.
    pub samples: usize,
    /// Number of samples of the global batch, over all ranks.
    pub global_samples: usize,
    /// Whether it is the last batch of the epoch, on every rank.
    pub last: bool,
}

impl<O> ShardedBatch<O> {
    /// Creates a global batch of `samples` for a single rank.
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
pub type ShardedBatches<O> = Box<dyn Iterator<Item = Result<ShardedBatch<O>>> + Send>;

/// The error of a batch that cannot be read.
pub(crate) fn unreadable(error: DatasetError) -> Error {
    Error::Invalid(format!("cannot read the data: {error}"))
}

/// The finished part of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochProgress {
    /// Number of batches of each rank, at the world size at which they were trained.
    pub batches: usize,
    /// Number of samples over all ranks, from the start of the epoch's global order.
    pub samples: usize,
}

/// A loader that can start at any epoch and step, such as [`ShardedLoader`].
pub trait DistributedLoader<O>: DataLoader<O> {
    /// Returns the batches of `epoch` (from 1) on `device`, without the first `skip`.
    fn epoch(&self, epoch: usize, skip: usize, device: &Device) -> ShardedBatches<O>;
    /// Number of steps of an epoch, equal on every rank.
    fn steps(&self) -> usize;
    /// Number of samples of an epoch over all ranks.
    fn samples(&self) -> usize;
    /// Verifies that there are samples; `set` names the data set in the error.
    ///
    /// # Errors
    /// [`Error::EmptyDataset`].
    fn require_samples(&self, set: &str) -> Result<()> {
        if self.samples() > 0 { Ok(()) } else { Err(Error::EmptyDataset { set: set.into() }) }
    }
    /// Names and values of further settings that must be equal on all ranks, such as the batch size.
    ///
    /// They are compared before the first step.
    fn settings(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
    /// Returns the remaining batches of `epoch`, which may have started at another world size.
    ///
    /// The default skips the finished batches, which is correct at the same world size only.
    fn rest(&self, epoch: usize, done: EpochProgress, device: &Device) -> ShardedBatches<O> {
        self.epoch(epoch, done.batches, device)
    }
    /// Number of remaining steps of an epoch.
    fn steps_left(&self, done: EpochProgress) -> usize {
        self.steps().saturating_sub(done.batches)
    }
}
