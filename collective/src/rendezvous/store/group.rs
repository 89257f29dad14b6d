//! The job's own store, kept by rank 0's server: PyTorch's `TCPStore`.

use super::{Store, USER_KEYS, check_size, unset};
use crate::{
    Error, Result,
    rendezvous::{
        control::{CAUSE_TIMEOUT, Control},
        deadline, frame,
    },
};
use std::time::{Duration, Instant};

/// Most bytes of a key and its value: as JSON they must fit into a frame.
const LIMIT: usize = frame::LIMIT / 8;

/// The internal key of a user's key, which separates it from the group's own keys.
fn user(key: &str) -> String {
    format!("{USER_KEYS}{key}")
}

impl Store for Control {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        check_size(value.len(), LIMIT.saturating_sub(key.len()))?;
        if let Some(cause) = self.cause() {
            return Err(cause);
        }
        self.set(&user(key), value);
        Ok(())
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let begun = Instant::now();
        self.ask(&user(key), false, begun + CAUSE_TIMEOUT)?.ok_or_else(|| Error::Timeout {
            call: format!("store key {key:?}"),
            seconds: begun.elapsed().as_secs_f64(),
            absent: "rank 0 does not answer (stopped or unreachable)".into(),
        })
    }

    fn delete(&self, key: &str) -> Result<()> {
        self.unset(&user(key));
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let begun = Instant::now();
        self.ask(&user(key), true, deadline(timeout))?.flatten().ok_or_else(|| unset(key, begun))
    }
}
