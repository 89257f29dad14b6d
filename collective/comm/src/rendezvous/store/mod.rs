//! Key-value stores: the job's own, files, memory, or a user's implementation.

mod file;

pub use file::FileStore;

use super::{
    control::{CAUSE_TIMEOUT, Control},
    deadline, frame,
    wire::Request,
};
use crate::{Error, Result, sync::lock};
use std::{
    collections::BTreeMap,
    fmt,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

/// Polling interval of a key.
const POLL: Duration = Duration::from_millis(20);

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
                return Err(waited(key, begun, UNSET));
            }
            thread::sleep(POLL.min(timeout));
        }
    }
}

/// Reason of an absent value.
const UNSET: &str = "no rank has set it";

/// The error of a rank that has waited for a key.
fn waited(key: &str, begun: Instant, absent: &str) -> Error {
    Error::timeout(format!("store key {key:?}"), begun.elapsed(), absent)
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

/// A store in this process's memory: PyTorch's `HashStore`.
///
/// ```
/// use burn_ddp_comm::{HashStore, Store};
/// use std::time::Duration;
/// let store = HashStore::default();
/// store.set("epoch", b"3")?;
/// assert_eq!(store.get("epoch", Duration::from_secs(1))?, b"3");
/// store.delete("epoch")?;
/// assert_eq!(store.try_get("epoch")?, None);
/// # Ok::<(), burn_ddp_comm::Error>(())
/// ```
#[derive(Default)]
pub struct HashStore(Mutex<BTreeMap<String, Vec<u8>>>);

debug_text! { HashStore, "HashStore({} keys)", |store| lock(&store.0).len() }

impl Store for HashStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        lock(&self.0).insert(key.into(), value.into());
        Ok(())
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(lock(&self.0).get(key).cloned())
    }

    fn delete(&self, key: &str) -> Result<()> {
        lock(&self.0).remove(key);
        Ok(())
    }
}

/// Most bytes of a key and its value: as JSON they must fit into a frame.
const LIMIT: usize = frame::LIMIT / 8;

/// The job's own store, kept by rank 0's server: PyTorch's `TCPStore`.
impl Store for Control {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        check_size(value.len(), LIMIT.saturating_sub(key.len()))?;
        if let Some(cause) = self.cause() {
            return Err(cause);
        }
        self.client.send(&Request::Set { key: key.into(), value: value.into() });
        Ok(())
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let begun = Instant::now();
        let answer = self.ask(key, false, begun + CAUSE_TIMEOUT)?;
        answer.ok_or_else(|| waited(key, begun, "rank 0 does not answer (stopped or unreachable)"))
    }

    fn delete(&self, key: &str) -> Result<()> {
        self.client.send(&Request::Delete { key: key.into() });
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let begun = Instant::now();
        self.ask(key, true, deadline(timeout))?.flatten().ok_or_else(|| waited(key, begun, UNSET))
    }
}
