//! The limit on ranks per machine, so that a mistyped number does not exhaust its memory.

use anyhow::{Result, bail};

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
    check_against(ranks, cores(), |name| std::env::var(name).ok())
}

fn check_against(ranks: usize, cores: usize, lookup: impl Fn(&str) -> Option<String>) -> Result<()> {
    if ranks == 0 {
        bail!("cannot start 0 ranks: a world has at least one");
    }
    let limit = match lookup(MAX_NPROC).filter(|text| !text.is_empty()) {
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

    fn checked(ranks: usize, cores: usize, variable: Option<&str>) -> Result<(), String> {
        let lookup = |name: &str| variable.filter(|_| name == MAX_NPROC).map(str::to_owned);
        check_against(ranks, cores, lookup).map_err(|error| error.to_string())
    }

    #[test]
    fn the_limit_grows_with_the_cores_and_can_be_raised() {
        assert_eq!((checked(32, 1, None), checked(64, 2, Some(""))), (Ok(()), Ok(())));
        assert_eq!((checked(1000, 1, Some("1000")), checked(3, 8, Some("3"))), (Ok(()), Ok(())));
        for (ranks, variable, named) in [
            (0, None, "at least one"),
            (65, None, "the limit is 64"),
            (65, None, "BURN_DDP_MAX_NPROC=65"),
            (4, Some("3"), "the limit is 3"),
            (1, Some("many"), "BURN_DDP_MAX_NPROC=many"),
        ] {
            let error = checked(ranks, 2, variable).expect_err("too many");
            assert!(error.contains(named), "{error} should name {named}");
        }
    }
}
