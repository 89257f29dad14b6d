//! SyncBatchNorm over ranks that are threads, against PyTorch, against Burn's BatchNorm over the
//! whole batch, and against arithmetic in f64.
#![cfg(feature = "burn")]

#[path = "../common/mod.rs"]
mod common;

mod batches;
mod conversion;
mod equality;
mod failures;
mod golden;
mod precision;
mod sharing;
