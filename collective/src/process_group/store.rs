//! Access to the job's own key-value store.

use super::{ProcessGroup, site::Site};
use crate::{Store, rendezvous::control::Control};
use std::sync::Arc;

impl ProcessGroup {
    /// The key-value store that all ranks of the job share, as PyTorch's `TCPStore`.
    ///
    /// All groups of the job have the same one. A key and its value may have 512 KiB together. A
    /// [`Store::get`] for a key that no rank can set any more, because all others wait in collectives,
    /// fails as a mismatch before its timeout; [`Store::try_get`] does not wait.
    ///
    /// ```
    /// # use collective::{Options, ProcessGroup};
    /// # use std::time::Duration;
    /// for group in ProcessGroup::threads(2, Options::default())? {
    ///     match group.rank() {
    ///         0 => group.store().set("port", b"8080")?,
    ///         _ => assert_eq!(group.store().get("port", Duration::from_secs(5))?, b"8080"),
    ///     }
    /// }
    /// # Ok::<(), collective::Error>(())
    /// ```
    pub fn store(&self) -> Arc<dyn Store> {
        match self.inner.site.as_ref() {
            Site::Solo { store, .. } => store.clone(),
            Site::Threads { guest, .. } => guest.clone(),
            Site::Processes { control, .. } => Arc::<Control>::clone(control),
        }
    }
}
