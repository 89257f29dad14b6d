//! CPU compute threads of a rank.

use super::args::ContextArgs;
use crate::{
    device::{keep_memory, use_small_pages},
    launch::cores,
};
use anyhow::{Context, Result};
use std::error::Error;

/// Compute threads of each of `parts` ranks or replicas.
pub(super) fn share(args: &ContextArgs, parts: usize) -> usize {
    args.threads.map_or((cores() / parts).max(1), usize::from)
}

/// Starts the CPU compute threads: rayon's global pool, which Burn's CPU backend uses. Returns their number.
///
/// With several threads, the calling thread is one of them, so that a parallel operation does not switch threads at
/// its start and end. A single thread is separate, because data loaders need it while the caller waits for them.
/// Threads that the program has started already, by its first parallel operation, stay in use.
///
/// # Errors
/// If the threads cannot be started.
pub fn use_threads(threads: usize) -> Result<usize> {
    keep_memory();
    use_small_pages();
    if rayon::current_thread_index().is_none() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let pool = if threads > 1 { pool.use_current_thread() } else { pool };
        // An error without a source states that the pool exists.
        if let Err(error) = pool.build_global()
            && error.source().is_some()
        {
            return Err(error).with_context(|| format!("cannot start {threads} compute thread(s)"));
        }
    }
    Ok(rayon::current_num_threads())
}
