//! SyncBatchNorm over ranks in threads, compared with PyTorch, Burn's BatchNorm over the whole batch and f64.

mod activated;
mod batches;
mod conversion;
mod equality;
mod failures;
mod golden;
mod precision;
mod sharing;
