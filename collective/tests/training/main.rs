//! Data-parallel training with Burn: gradients, SyncBatchNorm, precision, and the levels of the API.
//!
//! One program, because each would link all of Burn.
#![cfg(feature = "burn")]

#[path = "../common/mod.rs"]
mod common;
mod data_parallel;
mod gradients;
mod parameters;
mod precision;
mod replicas;
mod reports;
mod strategy;
mod sync_batch_norm;
mod tensor;
mod wrapper;
