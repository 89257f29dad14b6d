//! The transports, which move bytes between ranks.
//!
//! Each implements [`Communicator`](crate::Communicator), without knowledge of groups, tensors or settings.

/// Lists and names the variants of an enum.
macro_rules! variants {
    ($type:ident: $($variant:ident = $name:literal),*) => {
        impl $type {
            /// All variants.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// Its name, such as on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

/// Names the variants of an enum, which is displayed and parsed by them. `$unknown` is the error's message.
macro_rules! names {
    ($type:ident, $unknown:literal: $($variants:tt)*) => {
        variants! { $type: $($variants)* }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = crate::Error;

            fn from_str(text: &str) -> crate::Result<Self> {
                let named = Self::ALL.into_iter().find(|variant| variant.name() == text);
                named.ok_or_else(|| crate::Error::Invalid(format!($unknown, text)))
            }
        }
    };
}

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
