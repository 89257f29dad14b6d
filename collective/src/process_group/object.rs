//! Collectives on anything that serde can write: settings, metrics, names. They travel as JSON and
//! are meant to be small.

use super::ProcessGroup;
use crate::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};

/// Most bytes of one object.
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
    pub fn all_gather_object<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>> {
        let all = self.all_gather_v(&pack(value)?)?;
        all.iter().map(|bytes| unpack(bytes)).collect()
    }

    /// The root's `value`; what the others pass is ignored.
    pub fn broadcast_object<T: Serialize + DeserializeOwned>(&self, value: &T, root: usize) -> Result<T> {
        let mut bytes = if self.rank() == root { pack(value)? } else { Vec::new() };
        let mut length = [bytes.len() as i64];
        self.broadcast(&mut length, root)?;
        let length = usize::try_from(length[0]).unwrap_or(usize::MAX);
        check(length)?;
        bytes.resize(length, 0);
        self.broadcast(&mut bytes, root)?;
        unpack(&bytes)
    }
}
