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

pub use local::LocalRank;

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

names! { Transport, "unknown transport {:?}; choose auto, thread, shm, tcp, nccl or mpi":
    Auto = "auto", Thread = "thread", Shm = "shm", Tcp = "tcp", Nccl = "nccl", Mpi = "mpi"
}
