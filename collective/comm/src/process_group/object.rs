//! Collectives on small serialisable values such as settings, metrics and names. They are sent as JSON.

use super::ProcessGroup;
use crate::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Display;

/// Maximum size of one object in bytes.
const LIMIT: usize = 64 << 20;

fn pack<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let bytes = serde_json::to_vec(value)
        .map_err(|e| Error::Invalid(format!("the object cannot be written as JSON: {e}")))?;
    check(bytes.len())?;
    Ok(bytes)
}

fn check(bytes: usize) -> Result<()> {
    if bytes <= LIMIT {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "an object of {bytes} bytes exceeds the limit of {LIMIT}; send large data as numbers"
    )))
}

fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|e| Error::Invalid(format!("the object received is not what this rank expects: {e}")))
}

impl ProcessGroup {
    /// Every rank's `value`, in rank order.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a value cannot be serialised, is larger than 64 MiB or does not deserialise on
    /// this rank; those of [`ProcessGroup::all_reduce`].
    pub fn all_gather_object<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>> {
        let all = self.all_gather_v(&pack(value)?)?;
        all.iter().map(|bytes| unpack(bytes)).collect()
    }

    /// The `value` of rank `root`; the values of the other ranks are ignored.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no rank `root`; those of [`ProcessGroup::all_gather_object`].
    pub fn broadcast_object<T: Serialize + DeserializeOwned>(&self, value: &T, root: usize) -> Result<T> {
        unpack(&self.broadcast_bytes((self.rank() == root).then(|| pack(value)).transpose()?, root)?)
    }

    /// The root's bytes. Only the root knows their length.
    fn broadcast_bytes(&self, bytes: Option<Vec<u8>>, root: usize) -> Result<Vec<u8>> {
        self.with_permit(|group| {
            let mut bytes = bytes.unwrap_or_default();
            let mut length = [bytes.len() as i64];
            group.broadcast(&mut length, root)?;
            let length = usize::try_from(length[0]).unwrap_or(usize::MAX);
            check(length)?;
            bytes.resize(length, 0);
            group.broadcast(&mut bytes, root)?;
            Ok(bytes)
        })
    }

    /// Runs `act` on rank `rank` and returns its result on all ranks.
    ///
    /// The other ranks wait within the group's time-out. Meant for downloads, checks and decisions.
    ///
    /// # Errors
    /// [`Error::Remote`] on all ranks if `act` fails; the group stays usable. [`Error::Invalid`] if there is
    /// no such rank; those of [`ProcessGroup::all_gather_object`].
    pub fn run_on<T, E>(&self, rank: usize, act: impl FnOnce() -> Result<T, E>) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
        E: Display,
    {
        let rank = self.shared.check_rank("rank", rank)?;
        let outcome = (self.rank() == rank).then(|| {
            let outcome = act().map_err(|error| format!("{error:#}"));
            pack(&outcome).or_else(|error| pack(&Err::<T, _>(error.to_string())))
        });
        let outcome = unpack(&self.broadcast_bytes(outcome.transpose()?, rank)?)?;
        let member = self.shared.state.members[rank];
        let failed = |reason: String| Error::Remote { rank: member, reason };
        Result::<T, String>::map_err(outcome, failed)
    }

    /// Runs `act` on rank 0 only. The other ranks do not wait.
    pub fn on_rank_zero<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        (self.rank() == 0).then(act)
    }
}
