//! Data-parallel training with Burn: gradients, SyncBatchNorm, precision, and the levels of the API.
//!
//! One program, because each would link all of Burn.

#[path = "../../comm/tests/common/mod.rs"]
mod common;
mod ddp;
mod dp;
mod features;
mod gradients;
mod precision;
mod replicas;
mod reports;
mod strategy;
mod support;
mod sync_batch_norm;
mod tensor;

/// Source of the NCCL stand-in.
#[cfg(target_os = "linux")]
const NCCL_STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../comm/tests/nccl_stand_in/nccl.rs");
