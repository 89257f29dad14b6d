//! Batches built ahead on worker threads, and delivered in order.

use super::{ShardedBatch, ShardedBatches};
use burn::data::dataset::DatasetError;
use std::{
    collections::VecDeque,
    sync::mpsc::{Receiver, sync_channel},
    thread,
};

/// Batches a worker may be ahead of the training thread.
const AHEAD: usize = 2;

/// The samples of one batch, and how many there are over all ranks.
#[derive(Clone)]
pub(super) struct Batch {
    pub indices: Vec<usize>,
    pub global: usize,
    /// Whether it is the last of the epoch.
    pub last: bool,
}

/// Builds each batch with `build`; on the calling thread if there are no `workers`.
pub(super) fn build<O: Send + 'static>(
    batches: Vec<Batch>,
    workers: usize,
    build: impl Fn(&Batch) -> Result<ShardedBatch<O>, DatasetError> + Clone + Send + 'static,
) -> ShardedBatches<O> {
    if workers == 0 {
        return Box::new(batches.into_iter().map(move |batch| build(&batch)));
    }
    // Worker w builds batches w, w + workers, …, each through its own channel, so that reading
    // the channels in turn gives the batches in order. A dropped iterator closes the channels,
    // which ends the workers.
    let queues = (0..workers)
        .map(|worker| {
            let build = build.clone();
            let mine: Vec<_> = batches.iter().skip(worker).step_by(workers).cloned().collect();
            let (send, receive) = sync_channel(AHEAD);
            thread::spawn(move || mine.iter().all(|batch| send.send(build(batch)).is_ok()));
            receive
        })
        .collect();
    Box::new(InTurn { queues, left: batches.len() })
}

/// Reads the workers' channels in turn.
struct InTurn<O> {
    queues: VecDeque<Receiver<Result<ShardedBatch<O>, DatasetError>>>,
    left: usize,
}

impl<O> Iterator for InTurn<O> {
    type Item = Result<ShardedBatch<O>, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let item = self.queues.front()?.recv();
        self.queues.rotate_left(1);
        // A worker that panicked must not look like the end of the epoch: other ranks continue.
        Some(item.unwrap_or_else(|_| Err(DatasetError::new(std::io::Error::other("a data worker panicked")))))
    }
}
