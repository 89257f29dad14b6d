//! Data-parallel training on Burn tensors.
//!
//! It has the middle levels of `burn-ddp`'s API, and re-exports the process groups of `burn-ddp-comm`, on which they
//! are built:
//!
//! | level | you write | you get |
//! |---|---|---|
//! | [`DdpStrategy`](strategy::DdpStrategy) or [`DpStrategy`](strategy::DpStrategy) | a burn-train `Learner` | the same training under burn-train |
//! | [`DistributedDataParallel`] or [`DataParallel`] | the training loop | sharded loaders, synchronised gradients and BatchNorm |
//! | [process groups](ProcessGroup) | everything | collectives on slices and [tensors](tensor) |
//!
//! This crate contains no model, no data set and no command line.

#![warn(missing_docs)]

mod batch_context;
mod batch_scope;
#[cfg(feature = "cuda")]
pub mod cuda;
mod data;
mod ddp;
pub mod device_error;
pub mod dp;
mod exchange;
pub mod gradient;
pub mod health;
pub mod module_state;
mod parameters;
pub mod precision;
pub(crate) mod readback;
pub mod sync_batch_norm;
pub mod tensor;
mod train;

pub use burn_ddp_comm::{
    Call, Communicator, DType, DevicePath, Element, Error, FileStore, FlightRecord, HashStore, InitMethod,
    JOB_ID, Options, ProcessGroup, RENDEZVOUS_TIMEOUT, RecordedCall, ReduceOp, Result, SECRET, Secret,
    SettingDifference, Store, Transport, Work, World, explain,
};
pub use burn_ddp_comm::{address, channel, communicator, dtype, error, host, listener, reduce, transport};
pub use data::{join, loader, sampler};
pub use ddp::{
    DataParallel, DistributedDataParallel, Loss, ParallelModule, StepGradients, StepOptions, StepState,
    local_sgd,
};
pub use train::{lr, metric, strategy};
