//! Layers with the names of [`burn::nn`], which are fast on a CPU: see [`kernels::nn`].

pub use collective::sync_batch_norm::{SyncBatchNorm as BatchNorm, SyncBatchNormConfig as BatchNormConfig};
pub use kernels::nn::*;
