//! Options of a process group.

use crate::{
    Error, Result, Secret,
    rendezvous::wait::{Cancel, Report},
    transport::{Transport, tcp::Algorithm},
};
use std::{env, path::PathBuf, sync::Arc, time::Duration};

/// Environment variable with the number of seconds that `init` waits for all ranks.
pub const RENDEZVOUS_TIMEOUT: &str = "BURN_DDP_RENDEZVOUS_TIMEOUT";
/// Environment variable with the job's id.
pub const JOB_ID: &str = "BURN_DDP_JOB_ID";

/// Time limit of a collective and of `init`, if no other one is set.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Options for [`ProcessGroup::init`](crate::ProcessGroup::init).
///
/// Unset options come from the environment or have a default.
///
/// ```
/// use burn_ddp_comm::{InitMethod, Options, ProcessGroup};
/// let options = Options::default().rank(0).world_size(1);
/// let group = ProcessGroup::init("tcp://127.0.0.1:29500".parse()?, options)?;
/// assert_eq!(group.world_size(), 1);
/// # Ok::<(), burn_ddp_comm::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(crate) rank: Option<usize>,
    pub(crate) world_size: Option<usize>,
    timeout: Option<Duration>,
    rendezvous_timeout: Option<Duration>,
    pub(crate) transport: Transport,
    pub(crate) tcp_algorithm: Option<Algorithm>,
    pub(crate) secret: Option<Secret>,
    pub(crate) flight_folder: Option<PathBuf>,
    pub(crate) host_id: Option<String>,
    pub(crate) group_name: Option<String>,
    pub(crate) report: Option<Report>,
    pub(crate) cancel: Option<Cancel>,
}

impl Options {
    crate::setters! {
        /// Rank of this process, from 0. Default: the environment's `RANK`.
        rank(rank: usize) => rank = Some(rank);

        /// Number of processes. Default: the environment's `WORLD_SIZE`.
        world_size(world_size: usize) => world_size = Some(world_size);

        /// Time limit of one collective. Default: 5 minutes.
        ///
        /// It must exceed the longest difference between ranks within one step, such as one rank writing a
        /// checkpoint.
        timeout(timeout: Duration) => timeout = Some(timeout);

        /// Time limit for `init` and `split` to wait for all ranks.
        ///
        /// Default: the environment's `BURN_DDP_RENDEZVOUS_TIMEOUT` in seconds, or 5 minutes.
        rendezvous_timeout(timeout: Duration) => rendezvous_timeout = Some(timeout);

        /// Id of the job, as PyTorch's `group_name`.
        ///
        /// Default: the environment's `BURN_DDP_JOB_ID` or `TORCHELASTIC_RUN_ID`. A process of another job that
        /// connects to the same address is refused with an error that names both jobs.
        group_name(group_name: impl Into<String>) => group_name = Some(group_name.into());

        /// How the ranks exchange data. Default: [`Transport::Auto`].
        transport(transport: Transport) => transport = transport;

        /// Algorithm of all-reduces over TCP, for benchmarks. Default: chosen by size.
        ///
        /// All ranks must set the same.
        tcp_algorithm(tcp_algorithm: Algorithm) => tcp_algorithm = Some(tcp_algorithm);

        /// Secret that all ranks of the job share.
        ///
        /// Default: the environment's `BURN_DDP_SECRET`. Required if the world spans machines.
        secret(secret: Secret) => secret = Some(secret);

        /// Folder for the flight record that every rank writes when the group fails, for
        /// [`explain`](crate::explain).
        ///
        /// Default: the environment's `BURN_DDP_FLIGHT_DIR`. Without either, no record is written.
        flight_folder(flight_folder: impl Into<PathBuf>) => flight_folder = Some(flight_folder.into());

        /// Identity of this machine: ranks with equal text are on one machine.
        ///
        /// Default: the environment's `BURN_DDP_HOST_ID`, or an id of the running kernel and container.
        host_id(host_id: impl Into<String>) => host_id = Some(host_id.into());

        /// Calls `report` for problems that do not fail a call.
        ///
        /// While `init` waits, it is called about every ten seconds with an [`Error::Rendezvous`], which on rank 0
        /// names the ranks that have not joined, and on the others rank 0 while that cannot be reached. It is also
        /// called, on any thread, when a [flight record](Self::flight_folder) cannot be written.
        on_warning(report: impl Fn(&Error) + Send + Sync + 'static) => report = Some(Report(Arc::new(report)));

        /// Ends the wait of `init` with an [`Error::Rendezvous`] soon after `cancel` returns true.
        ///
        /// It is called several times per second while `init` waits, for example to learn that a rank will not join.
        cancel_if(cancel: impl Fn() -> bool + Send + Sync + 'static) => cancel = Some(Cancel(Arc::new(cancel)));
    }

    pub(crate) fn call_timeout(&self) -> Duration {
        self.timeout.unwrap_or(TIMEOUT)
    }

    /// Time limit of `init` and `split`.
    pub(crate) fn join_timeout(&self) -> Duration {
        self.rendezvous_timeout.unwrap_or(TIMEOUT)
    }

    /// Fills in unset options from the environment.
    pub(crate) fn or_environment(mut self) -> Result<Self> {
        let variable = |name: &str| env::var(name).ok().filter(|text| !text.is_empty());
        self.flight_folder =
            self.flight_folder.or_else(|| variable("BURN_DDP_FLIGHT_DIR").map(PathBuf::from));
        self.host_id = self.host_id.or_else(|| variable("BURN_DDP_HOST_ID"));
        self.group_name =
            self.group_name.or_else(|| variable(JOB_ID)).or_else(|| variable("TORCHELASTIC_RUN_ID"));
        if let Some(text) = variable(RENDEZVOUS_TIMEOUT).filter(|_| self.rendezvous_timeout.is_none()) {
            let seconds = text.trim().parse().ok().filter(|seconds| (0.001..=1e6).contains(seconds));
            let seconds = seconds.ok_or_else(|| {
                Error::Invalid(format!(
                    "environment variable {RENDEZVOUS_TIMEOUT} is {text:?}; it must be a number of seconds from 0.001 to 1e6"
                ))
            })?;
            self.rendezvous_timeout = Some(Duration::from_secs_f64(seconds));
        }
        Ok(self)
    }
}
