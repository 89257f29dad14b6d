//! Flags for rank, world size and rendezvous: the arguments of PyTorch's `init_process_group`.

use super::Environment;
use crate::{cli::positive, console::last_words, exit, stop};
use anyhow::{Result, bail};
use collective::{InitMethod, Options};
use std::time::Duration;

/// Identity of this process and meeting point of the ranks, where no launcher sets them.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct WorldArgs {
    /// Where the ranks meet: env://, tcp://HOST:PORT, file:///PATH or mpi:// [default: as the launcher says]
    #[arg(long, alias = "init_method", value_name = "URL", help_heading = "World")]
    pub init_method: Option<InitMethod>,
    /// Rank of this process [default: as the launcher says]
    #[arg(long, value_name = "R", requires = "world_size", help_heading = "World")]
    pub rank: Option<usize>,
    /// Number of processes [default: as the launcher says]
    #[arg(
        long, alias = "world_size", value_name = "N", requires = "rank", value_parser = positive,
        help_heading = "World"
    )]
    pub world_size: Option<usize>,
    /// Job id; processes of another job at the same address are refused [default: the launcher's]
    #[arg(long, alias = "job_id", value_name = "ID", help_heading = "World")]
    pub job_id: Option<String>,
    /// Seconds to wait for all ranks at the start [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = crate::cli::seconds, help_heading = "World")]
    pub rendezvous_timeout: Option<f64>,
}

impl WorldArgs {
    /// This process's place in the world, from these flags or a launcher's variables, if either is set.
    ///
    /// # Errors
    /// Naming the flag or variable that is missing or out of range.
    pub fn environment(&self) -> Result<Option<Environment>> {
        if let (Some(rank), Some(world_size)) = (self.rank, self.world_size) {
            if rank >= world_size {
                bail!("--rank {rank} must be below --world-size {world_size}; ranks count from 0");
            }
            exit::name_rank(rank);
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

    /// `options` with these flags, and with this process's signals and standard error connected.
    pub(super) fn options(&self, rank: usize, options: Options) -> Options {
        let options = options
            .stop_requested(|| stop::asked() > 0)
            .on_wait(move |missing| last_words(&format!("rank {rank}: {missing}")));
        let options = match self.rendezvous_timeout {
            Some(seconds) => options.rendezvous_timeout(Duration::from_secs_f64(seconds)),
            None => options,
        };
        match &self.job_id {
            Some(job) => options.group_name(job),
            None => options,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        world: WorldArgs,
    }

    fn parsed(flags: &str) -> Result<WorldArgs> {
        Ok(Flags::try_parse_from(["x"].into_iter().chain(flags.split_whitespace()))?.world)
    }

    #[test]
    fn flags_stand_for_a_launchers_variables() {
        let flags = parsed("--init-method file:///tmp/job --rank 1 --world-size 3").expect("good flags");
        let environment = flags.environment().expect("a rank").expect("a launched rank");
        assert_eq!((environment.rank, environment.world_size), (1, 3));
        assert_eq!(flags.init_method.map(|method| method.to_string()).as_deref(), Some("file:///tmp/job"));
    }

    #[test]
    fn contradictions_name_the_flag() {
        for (flags, named) in [
            ("--rank 1", "--world-size"),
            ("--world-size 2", "--rank"),
            ("--rank 0 --world-size 0", "--world-size"),
            ("--init-method tcp://nowhere", "the port is missing"),
            ("--rendezvous-timeout 0", "--rendezvous-timeout"),
        ] {
            let error = parsed(flags).map(drop).expect_err(flags).to_string();
            assert!(error.contains(named), "`{flags}`: {error} should name {named}");
        }
        let flags = parsed("--rank 2 --world-size 2").expect("known when they are used");
        let error = flags.environment().expect_err("no such rank").to_string();
        assert!(error.contains("--rank 2") && error.contains("--world-size 2"), "{error}");
    }
}
