//! The transports, which move bytes between ranks.
//!
//! Each implements [`Communicator`](crate::Communicator), without knowledge of groups, tensors or settings.

pub(crate) mod header;
mod local;
pub(crate) mod method;
#[cfg(feature = "mpi")]
pub(crate) mod mpi;
#[cfg(not(feature = "mpi"))]
#[path = "no_mpi.rs"]
pub(crate) mod mpi;
pub mod nccl;
#[cfg(target_os = "linux")]
pub mod shm;
pub mod tcp;
pub mod thread;

use crate::{Error, Result};
use std::{fmt, str::FromStr};

/// The transport of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Transport {
    /// The fastest one that all ranks of the group can use.
    #[default]
    Auto,
    /// Threads of one process.
    Thread,
    /// Shared memory of one machine.
    Shm,
    /// TCP, within a machine and between machines.
    Tcp,
    /// NCCL between NVIDIA GPUs, and the fastest other one for data on the host: see
    /// [`ProcessGroup::attach`](crate::ProcessGroup::attach).
    Nccl,
    /// The MPI library that started the processes. Needs the feature `mpi`.
    Mpi,
}

impl Transport {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Thread => "thread",
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
            Transport::Nccl => "nccl",
            Transport::Mpi => "mpi",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transport {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let all = [
            Transport::Auto,
            Transport::Thread,
            Transport::Shm,
            Transport::Tcp,
            Transport::Nccl,
            Transport::Mpi,
        ];
        all.into_iter().find(|transport| transport.name() == text).ok_or_else(|| {
            Error::Invalid(format!("unknown transport {text:?}; choose auto, thread, shm, tcp, nccl or mpi"))
        })
    }
}
