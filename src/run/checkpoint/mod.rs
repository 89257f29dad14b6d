//! Checkpoints: what is in one, where they are kept, and how a run goes on from one.
//!
//! ```text
//! RUN_DIR/checkpoints/step-000120/   manifest.json, model.bpk, optimizer.bpk, scheduler.bpk
//! RUN_DIR/checkpoints/last, best     links to two of them
//! ```

mod identity;
mod keeper;
mod manifest;
mod resume;
mod store;

pub use identity::Identity;
pub use keeper::FolderKeeper;
pub use manifest::{FORMAT, Manifest, Refusal};
pub use resume::Found;
pub use store::Store;
