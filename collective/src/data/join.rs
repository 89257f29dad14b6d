//! Training with data loaders of different lengths, as PyTorch's `join`.
//!
//! Ranks without data left yield padding, which has weight zero, until all ranks are done. This costs one message
//! of 24 bytes per step. [`ShardedLoader`](crate::data::loader::ShardedLoader) does not need it, because it splits an
//! epoch into the same number of steps on every rank; other loaders do, such as one that reads a different file on
//! each rank.

use crate::{
    Error, ProcessGroup, ReduceOp, Result,
    data::loader::{DistributedLoader, ShardedBatch, ShardedBatches, start_thread, unreadable},
};
use burn::data::{
    dataloader::{DataLoader, DataLoaderIterator},
    dataset::DatasetError,
};
use burn::tensor::Device;
use std::sync::{Arc, mpsc::sync_channel};

/// Number of batches that are read ahead of training.
const AHEAD: usize = 2;

type CountSamples<O> = Arc<dyn Fn(&O) -> usize + Send + Sync>;

/// Pads this rank's `batches` to the length of the longest rank's.
///
/// Padding repeats the first batch with a sample count of 0. `samples` returns the sample count of a batch. Every
/// rank of `group` must exhaust its iterator, and make no other call on `group` from another thread meanwhile.
///
/// # Errors
/// The iterator yields an error if a batch cannot be read, the group fails, or this rank has no batch while
/// others have some.
pub fn join<O: Clone>(
    batches: impl Iterator<Item = std::result::Result<O, DatasetError>>,
    samples: impl Fn(&O) -> usize,
    group: ProcessGroup,
) -> impl Iterator<Item = Result<ShardedBatch<O>>> {
    let (mut batches, mut first, mut over) = (batches.fuse().peekable(), None, false);
    std::iter::from_fn(move || {
        if over {
            return None;
        }
        let own = match batches.next().transpose() {
            Ok(own) => own,
            Err(error) => {
                over = true;
                return Some(Err(unreadable(error)));
            }
        };
        first = first.take().or_else(|| own.clone());
        let count = own.as_ref().map_or(0, &samples);
        let mut all = [count as i64, i64::from(own.is_some()), i64::from(batches.peek().is_some())];
        if let Err(error) = group.all_reduce(&mut all, ReduceOp::Sum) {
            over = true;
            return Some(Err(error));
        }
        let last = all[2] == 0;
        over = last;
        if all[1] == 0 {
            return None;
        }
        let Some(item) = own.or_else(|| first.clone()) else {
            over = true;
            let rank = group.rank();
            return Some(Err(Error::Invalid(format!(
                "rank {rank} has no batches; every rank needs at least one"
            ))));
        };
        Some(Ok(ShardedBatch { item, samples: count, global_samples: all[0] as usize, last }))
    })
}

/// A Burn data loader of any length for [`DdpStrategy`](crate::train::strategy::DdpStrategy).
pub struct JoinedLoader<O> {
    loader: Arc<dyn DataLoader<O>>,
    count: CountSamples<O>,
    group: ProcessGroup,
    steps: usize,
    samples: usize,
}

impl<O: Clone + Send + 'static> JoinedLoader<O> {
    /// Wraps `loader`. Every rank must call it.
    ///
    /// `batches` is this rank's number of batches per epoch, which only sets the announced number of steps. `count`
    /// returns the sample count of a batch.
    ///
    /// # Errors
    /// If the group fails.
    pub fn new(
        loader: Arc<dyn DataLoader<O>>,
        batches: usize,
        count: impl Fn(&O) -> usize + Send + Sync + 'static,
        group: &ProcessGroup,
    ) -> Result<Self> {
        let (mut steps, mut samples) = ([batches as i64], [loader.num_items() as i64]);
        group.all_reduce(&mut steps, ReduceOp::Max)?;
        group.all_reduce(&mut samples, ReduceOp::Sum)?;
        Ok(Self {
            loader,
            count: Arc::new(count),
            group: group.clone(),
            steps: steps[0] as usize,
            samples: samples[0] as usize,
        })
    }

    fn over(&self, loader: Arc<dyn DataLoader<O>>) -> Arc<dyn DataLoader<O>> {
        Arc::new(Self { loader, count: self.count.clone(), group: self.group.clone(), ..*self })
    }
}

impl<O: Clone + Send + 'static> DistributedLoader<O> for JoinedLoader<O> {
    /// The loader defines its epochs, so that the number is not used.
    fn epoch(&self, _epoch: usize, skip: usize, device: &Device) -> ShardedBatches<O> {
        let loader = self.loader.to_device(device);
        let (send, receive) = sync_channel(AHEAD);
        let mut failed = start_thread(move || {
            // The channel is closed when the consumer stops early.
            if loader.iter().all(|item| send.send(Some(item)).is_ok()) {
                let _ = send.send(None);
            }
        })
        .err();
        let batches = std::iter::from_fn(move || match receive.recv() {
            Ok(item) => item,
            Err(_) if failed.is_some() => failed.take().map(Err),
            // A loader that panicked must not look like the end of the epoch, because other ranks continue.
            Err(_) => Some(Err(DatasetError::new(std::io::Error::other("the data loader panicked")))),
        });
        let count = self.count.clone();
        Box::new(join(batches, move |item: &O| count(item), self.group.clone()).skip(skip))
    }

    fn steps(&self) -> usize {
        self.steps
    }

    fn samples(&self) -> usize {
        self.samples
    }
}

impl<O: Clone + Send + 'static> DataLoader<O> for JoinedLoader<O> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<O> + 'a> {
        self.loader.iter()
    }

    fn num_items(&self) -> usize {
        self.loader.num_items()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<O>> {
        self.over(self.loader.to_device(device))
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<O>> {
        self.over(self.loader.slice(start, end))
    }
}
