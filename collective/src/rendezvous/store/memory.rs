//! A store in the memory of one process, for ranks that are its threads.

use super::{Store, unset};
use crate::Result;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A store in this process's memory: PyTorch's `HashStore`.
///
/// ```
/// use collective::{HashStore, Store};
/// use std::time::Duration;
/// let store = HashStore::default();
/// store.set("epoch", b"3")?;
/// assert_eq!(store.get("epoch", Duration::from_secs(1))?, b"3");
/// store.delete("epoch")?;
/// assert_eq!(store.try_get("epoch")?, None);
/// # Ok::<(), collective::Error>(())
/// ```
#[derive(Default)]
pub struct HashStore {
    values: Mutex<BTreeMap<String, Vec<u8>>>,
    changed: Condvar,
}

impl fmt::Debug for HashStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HashStore({} keys)", self.lock().len())
    }
}

impl HashStore {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for HashStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.lock().insert(key.into(), value.into());
        self.changed.notify_all();
        Ok(())
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.lock().get(key).cloned())
    }

    fn delete(&self, key: &str) -> Result<()> {
        self.lock().remove(key);
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let begun = Instant::now();
        let mut values = self.lock();
        loop {
            if let Some(value) = values.get(key) {
                return Ok(value.clone());
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(unset(key, begun));
            }
            values = self.changed.wait_timeout(values, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
