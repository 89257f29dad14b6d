//! Access to the job's own key-value store.

use super::{ProcessGroup, topology::Topology};
use crate::{Store, rendezvous::control::Control};
use std::sync::Arc;

impl ProcessGroup {
    /// The key-value store that all ranks of the job share, as PyTorch's `TCPStore`.
    ///
    /// All groups of the job have the same store. A key and its value may have 512 KiB together. A
    /// [`Store::get`] fails as a mismatch before its time-out if no rank can set the key any more, because
    /// all others wait in collectives. [`Store::try_get`] does not wait.
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
        match self.shared.topology.as_ref() {
            Topology::Solo { store, .. } => store.clone(),
            Topology::Threads { member, .. } => member.clone(),
            Topology::Processes { control, .. } => Arc::<Control>::clone(control),
        }
    }
}
