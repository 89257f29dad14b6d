//! Worker threads that build batches in advance and deliver them in order.
//!
//! The threads end with the epoch. CubeCL has a pool of device memory per stream, each thread has a stream of its own,
//! and the pool of a thread that has ended is neither freed nor used again. The threads of all epochs of a loader
//! therefore use the same streams.

use super::{ShardedBatch, ShardedBatches, unreadable};
use crate::device_error::{cause_of_panic, panic_text};
use burn::{backend::StreamId, data::dataset::DatasetError};
use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc::sync_channel},
    thread,
};
use tracing::info_span;

/// Maximum number of batches that a worker builds in advance.
const AHEAD: usize = 2;

/// Indices of the samples of a batch, which are none for padding.
pub(super) type Indices = ShardedBatch<Vec<usize>>;

/// Streams of `workers` threads.
pub(super) fn streams(workers: usize) -> Arc<[StreamId]> {
    (0..workers).map(|_| StreamId::allocate()).collect()
}

/// Builds each batch with `build` on at most one thread per stream, or on the calling thread if there are none.
pub(super) fn build<O: Send + 'static>(
    batches: Vec<Indices>,
    streams: &[StreamId],
    build: impl Fn(Indices) -> std::result::Result<ShardedBatch<O>, DatasetError> + Clone + Send + 'static,
) -> ShardedBatches<O> {
    let workers = streams.len().min(batches.len());
    // A panic must not end the epoch normally, because other ranks continue.
    let build = move |batch: Indices| {
        let _span = info_span!("build batch", samples = batch.samples).entered();
        let built = catch_unwind(AssertUnwindSafe(|| build(batch))).unwrap_or_else(|panic| {
            let cause = cause_of_panic(panic_text(&*panic).unwrap_or_default());
            let error = format!("the batcher or the data set panicked: {cause}");
            Err(DatasetError::new(io::Error::other(error)))
        });
        built.map_err(unreadable)
    };
    if workers == 0 {
        return Box::new(batches.into_iter().map(build));
    }
    // Worker w builds batches w, w + workers, …, each through its own channel, so that reading
    // the channels in turn gives the batches in order. A dropped iterator closes the channels,
    // which ends the workers.
    let queues = (streams[..workers].iter().copied().enumerate())
        .map(|(worker, stream)| {
            let build = build.clone();
            let mine: Vec<_> = batches.iter().skip(worker).step_by(workers).cloned().collect();
            let (send, receive) = sync_channel(AHEAD);
            let work =
                move || stream.executes(|| mine.into_iter().all(|batch| send.send(build(batch)).is_ok()));
            start_thread(work).map(|()| receive)
        })
        .collect::<std::result::Result<Vec<_>, _>>();
    match queues {
        Ok(queues) => {
            Box::new((0..batches.len()).map_while(move |batch| queues[batch % workers].recv().ok()))
        }
        Err(error) => Box::new(std::iter::once(Err(unreadable(error)))),
    }
}

/// Starts a thread that reads data.
pub(in crate::data) fn start_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> std::result::Result<(), DatasetError> {
    let failed = |error| {
        let failed = format!("cannot start a thread that loads data: {error}; see ulimit -a");
        DatasetError::new(io::Error::other(failed))
    };
    thread::Builder::new().name("data-loader".into()).spawn(work).map(drop).map_err(failed)
}
