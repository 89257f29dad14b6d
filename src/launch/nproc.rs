//! `--nproc-per-node`: the number of ranks on a machine, with one meaning in every command, and its limit.
//!
//! The limit keeps a mistyped number from exhausting the memory.

use anyhow::{Result, bail};
use std::{fmt, str::FromStr};

/// Ranks that `auto` starts on a machine without a GPU.
const CPU_RANKS: usize = 2;

/// Number of ranks on a machine, as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nproc {
    Count(usize),
    /// One per GPU, or two without a GPU.
    Auto,
    /// One per GPU.
    Gpu,
    /// One per core.
    Cpu,
}

impl Nproc {
    /// Number of ranks on a machine with `gpus` (or the reason why there are none) and `cores`.
    ///
    /// # Errors
    /// If a rank per GPU is requested and there is no GPU.
    pub fn count(self, gpus: Result<usize, String>, cores: usize) -> Result<usize> {
        match (self, gpus) {
            (Nproc::Count(count), _) | (Nproc::Auto | Nproc::Gpu, Ok(count)) => Ok(count),
            (Nproc::Gpu, Err(why)) => bail!("--nproc-per-node gpu: {why}"),
            (Nproc::Auto, Err(_)) => Ok(CPU_RANKS),
            (Nproc::Cpu, _) => Ok(cores),
        }
    }
}

impl FromStr for Nproc {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Nproc::Auto),
            "gpu" => Ok(Nproc::Gpu),
            "cpu" => Ok(Nproc::Cpu),
            number => match number.parse() {
                Ok(count @ 1..) => Ok(Nproc::Count(count)),
                Ok(0) | Err(_) => Err("expected auto, gpu, cpu or a number from 1".into()),
            },
        }
    }
}

impl fmt::Display for Nproc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nproc::Count(count) => count.fmt(f),
            Nproc::Auto => f.write_str("auto"),
            Nproc::Gpu => f.write_str("gpu"),
            Nproc::Cpu => f.write_str("cpu"),
        }
    }
}

/// Ranks per core beyond which a start is refused.
const PER_CORE: usize = 32;
/// Environment variable that sets the limit.
const MAX_NPROC: &str = "BURN_DDP_MAX_NPROC";

/// Cores that this process may run on.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Refuses a number of ranks that is too large for this machine.
///
/// # Errors
/// If there are none, or more than the limit, which the error names.
pub fn check(ranks: usize) -> Result<()> {
    if ranks == 0 {
        bail!("cannot start 0 ranks: a world has at least one");
    }
    let cores = cores();
    let limit = match std::env::var(MAX_NPROC).ok().filter(|text| !text.is_empty()) {
        None => cores.saturating_mul(PER_CORE),
        Some(text) => match text.parse() {
            Ok(limit @ 1..) => limit,
            Ok(0) | Err(_) => bail!("environment variable {MAX_NPROC}={text}: expected a number from 1"),
        },
    };
    if ranks > limit {
        bail!(
            "cannot start {ranks} ranks on a machine with {cores} core(s): the limit is {limit}, by default {PER_CORE} a core; {MAX_NPROC}={ranks} raises it"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_counted_as_requested() {
        let count = |text: &str, gpus: Option<usize>| {
            text.parse::<Nproc>().expect(text).count(gpus.ok_or_else(|| "no driver".into()), 6).ok()
        };
        assert_eq!((count("auto", Some(8)), count("auto", None)), (Some(8), Some(2)));
        assert_eq!((count("gpu", Some(8)), count("gpu", None)), (Some(8), None));
        assert_eq!((count("cpu", Some(8)), count("cpu", None)), (Some(6), Some(6)));
        assert_eq!((count("3", Some(8)), count("3", None)), (Some(3), Some(3)));
        for bad in ["0", "-1", "gpus", "", "1.5"] {
            assert!(bad.parse::<Nproc>().is_err(), "{bad}");
        }
        assert!(check(1).is_ok() && check(0).expect_err("no ranks").to_string().contains("at least one"));
    }
}
