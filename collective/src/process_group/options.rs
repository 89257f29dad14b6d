//! What a caller can choose about a process group.

use crate::{Secret, transport::Transport};
use std::{env, path::PathBuf, time::Duration};

/// Choices for [`ProcessGroup::init`](crate::ProcessGroup::init); what is not chosen comes from
/// the environment or a default.
///
/// ```
/// use collective::{InitMethod, Options, ProcessGroup};
/// let options = Options::default().rank(0).world_size(1);
/// let group = ProcessGroup::init("tcp://127.0.0.1:29500".parse()?, options)?;
/// assert_eq!(group.world_size(), 1);
/// # Ok::<(), collective::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) rank: Option<usize>,
    pub(crate) world_size: Option<usize>,
    pub(crate) timeout: Duration,
    pub(crate) rendezvous_timeout: Duration,
    pub(crate) transport: Transport,
    pub(crate) secret: Option<Secret>,
    pub(crate) flight_folder: Option<PathBuf>,
    pub(crate) host_id: Option<String>,
}

impl Default for Options {
    /// Rank, world size and secret from the environment; 5 minutes for a collective, 60 seconds
    /// for the rendezvous; the best transport there is.
    fn default() -> Self {
        Options {
            rank: None,
            world_size: None,
            timeout: Duration::from_secs(300),
            rendezvous_timeout: Duration::from_secs(60),
            transport: Transport::Auto,
            secret: None,
            flight_folder: None,
            host_id: None,
        }
    }
}

impl Options {
    /// Number of this process among all, from 0. Default: the environment's `RANK`.
    pub fn rank(mut self, rank: usize) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Number of processes. Default: the environment's `WORLD_SIZE`.
    pub fn world_size(mut self, world_size: usize) -> Self {
        self.world_size = Some(world_size);
        self
    }

    /// How long one collective may wait for the other ranks. Default: 5 minutes. The longest
    /// difference between ranks in one step, such as one rank writing a checkpoint, must fit.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long `init` may wait for all ranks to come. Default: 60 seconds.
    pub fn rendezvous_timeout(mut self, timeout: Duration) -> Self {
        self.rendezvous_timeout = timeout;
        self
    }

    /// How the ranks exchange data. Default: [`Transport::Auto`].
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// What all ranks of the job know and nobody else does. Default: the environment's
    /// `BURN_DDP_SECRET`; required if the world spans machines.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Folder in which every rank leaves its flight record when the group fails, for
    /// [`explain`](crate::explain). Default: the environment's `BURN_DDP_FLIGHT_DIR`; none is
    /// written without either.
    pub fn flight_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.flight_folder = Some(folder.into());
        self
    }

    /// Ranks with the same text count as being on one machine. Default: the environment's
    /// `BURN_DDP_HOST_ID`, or what tells running kernels and containers apart.
    pub fn host_id(mut self, id: impl Into<String>) -> Self {
        self.host_id = Some(id.into());
        self
    }

    /// Takes from the environment what has not been chosen.
    pub(crate) fn or_environment(mut self) -> Self {
        let variable = |name: &str| env::var(name).ok().filter(|text| !text.is_empty());
        self.flight_folder =
            self.flight_folder.or_else(|| variable("BURN_DDP_FLIGHT_DIR").map(PathBuf::from));
        self.host_id = self.host_id.or_else(|| variable("BURN_DDP_HOST_ID"));
        self
    }
}
