//! Flags for rank, world size and rendezvous, like the arguments of PyTorch's `init_process_group`.

use crate::{
    context::{
        short_help::shown_in_short_help,
        values::{positive, seconds},
    },
    launch::Environment,
    process::{console::eprint_line, exit},
};
use anyhow::{Result, bail};
use collective::{InitMethod, Options, ProcessGroup, Transport};
use std::time::Duration;

/// Rank, world size and init method, for processes without a launcher.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(mut_args(shown_in_short_help))]
pub struct WorldArgs {
    /// Rendezvous: env://, tcp://HOST:PORT, file:///PATH or mpi:// [default: the launcher's]
    #[arg(long, alias = "init_method", value_name = "URL", help_heading = "World")]
    pub init_method: Option<InitMethod>,
    /// Rank of this process [default: the launcher's]
    #[arg(long, value_name = "R", requires = "world_size", help_heading = "World")]
    pub rank: Option<usize>,
    /// Number of processes [default: the launcher's]
    #[arg(
        long, alias = "world_size", value_name = "N", requires = "rank", value_parser = positive,
        help_heading = "World"
    )]
    pub world_size: Option<usize>,
    /// Job id; processes of other jobs at the same address are refused [default: the launcher's]
    #[arg(long, alias = "job_id", value_name = "ID", help_heading = "World")]
    pub job_id: Option<String>,
    /// Time limit of the rendezvous in seconds [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = "World")]
    pub rendezvous_timeout: Option<f64>,
}

impl WorldArgs {
    /// Reads rank and world size from these flags or the launcher's environment variables.
    ///
    /// Returns `None` if neither is set.
    ///
    /// # Errors
    /// If a flag or variable is missing or out of range. The error names it.
    pub fn environment(&self) -> Result<Option<Environment>> {
        if let (Some(rank), Some(world_size)) = (self.rank, self.world_size) {
            if rank >= world_size {
                bail!("--rank {rank} must be below --world-size {world_size}; ranks count from 0");
            }
            exit::set_rank(rank);
        }
        let own = |name: &str| match name {
            "RANK" => self.rank,
            "WORLD_SIZE" => self.world_size,
            _ => None,
        };
        Environment::from_lookup(|name| {
            own(name).map(|value| value.to_string()).or_else(|| std::env::var(name).ok())
        })
    }

    /// Initialises the process group of all ranks.
    ///
    /// # Errors
    /// If the address of rank 0 is unknown, or [`ProcessGroup::init`] fails.
    pub fn connect(
        &self,
        environment: Environment,
        transport: Transport,
        options: Options,
    ) -> Result<ProcessGroup> {
        let Environment { rank, world_size, .. } = environment;
        if world_size == 1 {
            return Ok(ProcessGroup::solo());
        }
        let method = self.init_method.clone().map_or_else(|| environment.init_method(transport), Ok)?;
        let mut options = options.transport(transport).rank(rank).world_size(world_size);
        options = options.on_warning(move |warning| eprint_line(&format!("rank {rank}: {warning}")));
        if let Some(seconds) = self.rendezvous_timeout {
            options = options.rendezvous_timeout(Duration::from_secs_f64(seconds));
        }
        if let Some(job) = &self.job_id {
            options = options.group_name(job);
        }
        Ok(ProcessGroup::init(method, options)?)
    }
}
