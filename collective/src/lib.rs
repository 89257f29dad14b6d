//! Everything that makes replicas act as one: process groups and their transports and, with the
//! default feature `burn`, data-parallel training on Burn tensors.
//!
//! This crate knows no model, no data set and no command line.

pub mod communicator;
pub mod dtype;
pub mod error;
mod process_group;
pub mod reduce;
mod rendezvous;
pub mod transport;

pub use communicator::{Communicator, World};
pub use dtype::{DType, Element, ReduceOp};
pub use error::{Error, Result};
pub use process_group::{FlightRecord, Options, ProcessGroup, RecordedCall, Work, explain};
pub use rendezvous::{InitMethod, Secret};
pub use transport::Transport;
