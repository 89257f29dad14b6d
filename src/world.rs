//! Who this process is: the environment variables that torchrun, our launcher and mpirun set.

use anyhow::{Context, Result, bail};
use collective::{InitMethod, Transport};

/// This process among all processes of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Environment {
    /// Over all machines.
    pub rank: usize,
    /// On this machine.
    pub local_rank: usize,
    pub world_size: usize,
    /// Processes on this machine.
    pub local_world_size: usize,
    pub launcher: Launcher,
}

/// Who started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Nobody, or one that sets `RANK` and its like.
    Variables,
    /// OpenMPI's mpirun, which sets its own.
    Mpirun,
}

/// Rank, local rank, world size and local world size, as a launcher calls them.
type Names = [&'static str; 4];
const VARIABLES: Names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"];
const MPIRUN: Names = [
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
];

impl Environment {
    /// The world of one.
    pub const SOLO: Environment = Environment {
        rank: 0,
        local_rank: 0,
        world_size: 1,
        local_world_size: 1,
        launcher: Launcher::Variables,
    };

    /// What a launcher said, or `None` if there was none: neither `RANK` nor `LOCAL_RANK` nor
    /// mpirun's `OMPI_COMM_WORLD_RANK` is set.
    ///
    /// # Errors
    /// Naming the variable that is missing, not a number or out of range.
    pub fn detect() -> Result<Option<Self>> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let number = |name: &str| -> Result<Option<usize>> {
            lookup(name)
                .map(|value| {
                    value.trim().parse().with_context(|| format!("{name}={value} is not a number from 0"))
                })
                .transpose()
        };
        let ours = VARIABLES[..2].iter().any(|name| lookup(name).is_some());
        let (launcher, names) = match (ours, lookup(MPIRUN[0])) {
            (true, _) => (Launcher::Variables, VARIABLES),
            (false, Some(_)) => (Launcher::Mpirun, MPIRUN),
            (false, None) => return Ok(None),
        };
        let [rank_name, local_rank_name, world_name, local_world_name] = names;
        let rank = number(rank_name)?.with_context(|| {
            format!("{local_rank_name} is set but {rank_name} is not; a launcher sets both")
        })?;
        let world_size =
            number(world_name)?.with_context(|| format!("{rank_name} is set but {world_name} is not"))?;
        let local_rank = number(local_rank_name)?.unwrap_or(rank);
        let local_world_size = number(local_world_name)?.unwrap_or(world_size);
        for (name, value, bound_name, bound) in [
            (rank_name, rank, world_name, world_size),
            (local_rank_name, local_rank, local_world_name, local_world_size),
        ] {
            if value >= bound {
                bail!("{name}={value} must be below {bound_name}={bound}; ranks count from 0");
            }
        }
        if local_world_size > world_size {
            bail!("{local_world_name}={local_world_size} is more than {world_name}={world_size}");
        }
        Ok(Some(Environment { rank, local_rank, world_size, local_world_size, launcher }))
    }

    /// How the ranks meet: through MPI if it started them and this build has it or its transport is
    /// asked for, otherwise as the environment says.
    pub fn init_method(&self, transport: Transport) -> InitMethod {
        match self.launcher {
            Launcher::Mpirun if cfg!(feature = "mpi") || transport == Transport::Mpi => InitMethod::Mpi,
            Launcher::Mpirun | Launcher::Variables => InitMethod::Env,
        }
    }

    /// Whether this is the rank that speaks and writes files.
    pub fn is_main(&self) -> bool {
        self.rank == 0
    }

    /// Whether this is the one rank on its machine that downloads.
    pub fn is_local_main(&self) -> bool {
        self.local_rank == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(vars: &[(&str, &str)]) -> Result<Option<Environment>> {
        Environment::from_lookup(|name| vars.iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn torchruns_variables_are_read() {
        let vars = [("RANK", "5"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4")];
        let wanted =
            Environment { rank: 5, local_rank: 1, world_size: 8, local_world_size: 4, ..Environment::SOLO };
        assert_eq!(detect(&vars).ok(), Some(Some(wanted)));
        assert_eq!(detect(&[]).ok(), Some(None));
    }

    #[test]
    fn one_machine_needs_no_local_variables() {
        let wanted =
            Environment { rank: 1, local_rank: 1, world_size: 2, local_world_size: 2, ..Environment::SOLO };
        assert_eq!(detect(&[("RANK", "1"), ("WORLD_SIZE", "2")]).ok(), Some(Some(wanted)));
    }

    #[test]
    fn mpiruns_variables_are_read_unless_there_are_ours() {
        let mpirun = [
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let launcher = Launcher::Mpirun;
        let wanted = Environment { rank: 3, local_rank: 1, world_size: 4, local_world_size: 2, launcher };
        assert_eq!(detect(&mpirun).ok(), Some(Some(wanted)));
        let both = [&mpirun[..], &[("RANK", "0"), ("WORLD_SIZE", "1")]].concat();
        assert_eq!(detect(&both).ok(), Some(Some(Environment::SOLO)));
    }

    #[test]
    fn errors_name_the_variable() {
        for (vars, named) in [
            (&[("RANK", "x"), ("WORLD_SIZE", "2")][..], "RANK=x"),
            (&[("RANK", "0")], "WORLD_SIZE"),
            (&[("LOCAL_RANK", "0")], "RANK"),
            (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK=2"),
            (&[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "3")], "LOCAL_WORLD_SIZE=3"),
            (
                &[("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "3"), ("LOCAL_WORLD_SIZE", "2")],
                "LOCAL_RANK=3",
            ),
        ] {
            let error = detect(vars).expect_err("must be refused").to_string();
            assert!(error.contains(named), "{error} should name {named}");
        }
    }
}
