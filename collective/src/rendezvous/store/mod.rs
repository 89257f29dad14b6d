//! Key-value stores for the rendezvous: files, memory, or a user's implementation.

mod file;
mod group;
mod memory;

pub use file::FileStore;
pub use memory::HashStore;

use crate::{Error, Result};
use std::{
    fmt, thread,
    time::{Duration, Instant},
};

/// Polling interval of a key.
const POLL: Duration = Duration::from_millis(20);

/// Prefix of the user's keys in a group's own store.
pub(crate) const USER_KEYS: &str = "user:";

/// A key-value store that all ranks of a job can access.
///
/// [`ProcessGroup::init_with_store`](crate::ProcessGroup::init_with_store) exchanges rank 0's address
/// and the job's secret through it, so that anyone who can read it can join the job. A group's own
/// store, [`ProcessGroup::store`](crate::ProcessGroup::store), implements it as well.
pub trait Store: fmt::Debug + Send + Sync {
    /// Sets `key` to `value`, replacing an earlier value.
    ///
    /// # Errors
    /// If the store cannot be reached or rejects the value.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// The value of `key`, or `None` if it is not set. Does not wait for other ranks.
    ///
    /// # Errors
    /// If the store cannot be reached, or the value cannot be trusted.
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// Removes `key` if it is set.
    ///
    /// # Errors
    /// If the store cannot be reached.
    fn delete(&self, key: &str) -> Result<()>;

    /// The value of `key`, waiting until it is set, at most for `timeout`.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it is not set in time; those of [`Store::try_get`].
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let begun = Instant::now();
        loop {
            if let Some(value) = self.try_get(key)? {
                return Ok(value);
            }
            if begun.elapsed() >= timeout {
                return Err(unset(key, begun));
            }
            thread::sleep(POLL.min(timeout));
        }
    }
}

/// Rejects values that other ranks could not read.
fn check_size(bytes: usize, limit: usize) -> Result<()> {
    if bytes <= limit {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "a store value of {bytes} bytes exceeds the limit of {limit}; send large data with a collective"
    )))
}

/// The error of a rank that waited for a key.
pub(crate) fn unset(key: &str, begun: Instant) -> Error {
    Error::Timeout {
        call: format!("store key {key:?}"),
        seconds: begun.elapsed().as_secs_f64(),
        absent: "no rank has set it".into(),
    }
}
