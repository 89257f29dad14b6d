//! Who this process is: the environment variables that torchrun and our launcher set.

use anyhow::{Context, Result, bail};

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
}

impl Environment {
    /// The world of one.
    pub const SOLO: Environment = Environment { rank: 0, local_rank: 0, world_size: 1, local_world_size: 1 };

    /// What a launcher said, or `None` if there was none (neither `RANK` nor `LOCAL_RANK` is set).
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
        let (rank, local_rank) = (number("RANK")?, number("LOCAL_RANK")?);
        let Some(rank) = rank else {
            return match local_rank {
                None => Ok(None),
                Some(_) => bail!("LOCAL_RANK is set but RANK is not; a launcher sets both"),
            };
        };
        let world_size = number("WORLD_SIZE")?.context("RANK is set but WORLD_SIZE is not")?;
        let local_rank = local_rank.unwrap_or(rank);
        let local_world_size = number("LOCAL_WORLD_SIZE")?.unwrap_or(world_size);
        for (name, value, bound_name, bound) in [
            ("RANK", rank, "WORLD_SIZE", world_size),
            ("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_world_size),
        ] {
            if value >= bound {
                bail!("{name}={value} must be below {bound_name}={bound}; ranks count from 0");
            }
        }
        if local_world_size > world_size {
            bail!("LOCAL_WORLD_SIZE={local_world_size} is more than WORLD_SIZE={world_size}");
        }
        Ok(Some(Environment { rank, local_rank, world_size, local_world_size }))
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
        let wanted = Environment { rank: 5, local_rank: 1, world_size: 8, local_world_size: 4 };
        assert_eq!(detect(&vars).ok(), Some(Some(wanted)));
        assert_eq!(detect(&[]).ok(), Some(None));
    }

    #[test]
    fn one_machine_needs_no_local_variables() {
        let wanted = Environment { rank: 1, local_rank: 1, world_size: 2, local_world_size: 2 };
        assert_eq!(detect(&[("RANK", "1"), ("WORLD_SIZE", "2")]).ok(), Some(Some(wanted)));
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
