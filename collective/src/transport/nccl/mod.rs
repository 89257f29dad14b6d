//! NCCL: collectives on the memory of NVIDIA GPUs, without a copy to the host.
//!
//! A group's control plane stays what it is without a GPU: rendezvous, fingerprints, flight records
//! and the search for absent ranks go through [`shm`](super::shm), [`tcp`](super::tcp) or
//! [`thread`](super::thread). Before a call's data moves on the devices, the ranks agree on it
//! there: a rank that is late, missing or calls something else is found before NCCL, which would
//! hang, hears of the call. What NCCL alone can know, a watchdog for each communicator looks for.
//!
//! The library is loaded at run time, by [`Library::get`]; nothing of CUDA is needed to build.

mod api;
mod communicator;
mod library;
mod operations;
mod plane;
mod stream;

pub use api::UniqueId;
pub use communicator::NcclCommunicator;
pub use library::{Library, VARIABLE};
pub use plane::{OnFailure, Pending, Plane};
pub use stream::{DeviceSite, Mark, Stream};
