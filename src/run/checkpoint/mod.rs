//! Checkpoints: format, storage and resume.
//!
//! ```text
//! RUN_DIR/checkpoints/step-000120/   manifest.json, model.bpk, optimizer.bpk, scheduler.bpk
//! RUN_DIR/checkpoints/last, best     links to two of them
//! ```

mod manifest;
mod resume;
mod store;
mod writer;

pub use manifest::{CheckpointError, FORMAT, Manifest};
pub use resume::ResumePoint;
pub use store::CheckpointStore;
pub use writer::CheckpointWriter;
