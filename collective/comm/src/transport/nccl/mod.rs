//! NCCL: collectives in the memory of NVIDIA GPUs, without a copy to the host.
//!
//! The control plane is the same as without a GPU: rendezvous, fingerprints, flight records and the search
//! for missing ranks use [`shm`](super::shm), [`tcp`](super::tcp) or [`thread`](super::thread). The ranks
//! compare each call there: a single collective before its data moves on the devices, those of a training step in
//! the background. A rank that is late, missing or makes another call is thereby detected, although NCCL would
//! hang. A watchdog for each communicator detects failures inside NCCL.
//!
//! The library is loaded at run time by [`Library::get`]; building needs no part of CUDA.

mod api;
mod communicator;
mod library;
mod operations;
mod stream;
mod watchdog;
mod worker;

pub use api::UniqueId;
pub use communicator::NcclCommunicator;
pub use library::{Library, VARIABLE};
pub use stream::{DeviceSite, Event, Stream};
pub(crate) use watchdog::DeviceCall;
pub use watchdog::OnFailure;
pub(crate) use worker::NcclWorker;
pub use worker::Pending;
