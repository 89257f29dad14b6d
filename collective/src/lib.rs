//! Everything that makes replicas act as one: process groups and their transports and, with the
//! default feature `burn`, data-parallel training on Burn tensors.
//!
//! This crate knows no model, no data set and no command line.

#![warn(missing_docs)]

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "burn")]
pub mod data_parallel;
#[cfg(feature = "burn")]
pub mod flex;
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
pub mod precision;
#[cfg(feature = "burn")]
pub mod replica;
#[cfg(feature = "burn")]
pub mod schedule;
#[cfg(feature = "burn")]
pub mod strategy;
#[cfg(feature = "burn")]
pub mod sync_batch_norm;
#[cfg(feature = "burn")]
pub mod tensor;

pub mod communicator;
pub mod dtype;
pub mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod process_group;
pub mod random;
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
pub use rendezvous::{InitMethod, MASTER_FD, SECRET, Secret};
pub use rendezvous::{channel, host};
pub use transport::Transport;
