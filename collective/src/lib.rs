//! Process groups, transports and, with the default feature `burn`, data-parallel training on Burn tensors.
//!
//! It has the three lower levels of `burn-ddp`'s API:
//!
//! | level | you write | you get |
//! |---|---|---|
//! | `strategy::DdpStrategy` or `strategy::DpStrategy` | a burn-train `Learner` | the same training under burn-train |
//! | `DistributedDataParallel` or `DataParallel` | the training loop | sharded loaders, synchronised gradients and BatchNorm |
//! | `ProcessGroup` | everything | collectives on slices and tensors |
//!
//! This crate contains no model, no data set and no command line.

#![warn(missing_docs)]

#[cfg(feature = "burn")]
mod batch_context;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "burn")]
pub mod data_parallel;
#[cfg(feature = "burn")]
pub mod device_error;
#[cfg(feature = "burn")]
pub mod gradient;
#[cfg(feature = "burn")]
pub mod join;
#[cfg(feature = "burn")]
pub mod loader;
#[cfg(feature = "burn")]
pub mod lr;
#[cfg(feature = "burn")]
pub mod metric;
#[cfg(feature = "burn")]
pub mod module_state;
#[cfg(feature = "burn")]
pub mod precision;
#[cfg(feature = "burn")]
pub(crate) mod readback;
#[cfg(feature = "burn")]
pub mod strategy;
#[cfg(feature = "burn")]
pub mod sync_batch_norm;
#[cfg(feature = "burn")]
pub mod tensor;
#[cfg(feature = "burn")]
mod wrapper;

pub mod communicator;
pub mod dtype;
pub mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod health;
mod process_group;
mod python;
pub mod reduce;
mod rendezvous;
pub mod sampler;
pub mod transport;

pub use communicator::{Communicator, World};
pub use dtype::{DType, Element, ReduceOp};
pub use error::{Error, Result, SettingDifference};
pub use process_group::{
    DeviceCall, DevicePath, FlightRecord, JOB_ID, Options, ProcessGroup, RENDEZVOUS_TIMEOUT, RecordedCall,
    Work, explain,
};
pub use rendezvous::store::{FileStore, HashStore, Store};
pub use rendezvous::{InitMethod, SECRET, Secret};
pub use rendezvous::{address, channel, host, listener};
pub use transport::Transport;
#[cfg(feature = "burn")]
pub use wrapper::{
    DataParallel, DistributedDataParallel, Loss, ParallelModule, StepGradients, StepOptions, StepState,
};
