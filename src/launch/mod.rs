//! Starts one process per rank, watches them and ends them together.
//!
//! [`ranks()`] and [`spawn`] start this program again, once per rank. [`run`] starts any program, writes
//! its output to files, restarts it after a failure and coordinates with the launchers of other machines.
//!
//! ```text
//! run, spawn → rounds → ranks → child    one process in its own process group, which ends with the launcher
//!                 ↓       ↓ → output     prefixes and writes what the ranks print
//!               nodes
//!                 ↓
//!              failure_detector          decides in one place whether the round ends, or failed ranks are replaced
//! ```

mod child;
mod environment;
mod environments;
mod failure_detector;
mod generation;
mod job;
mod nodes;
pub mod nproc;
mod once;
mod outcome;
mod output;
mod port;
mod ranks;
mod rounds;

pub use environment::{Recover, Round, WHY};
#[cfg(test)]
pub(crate) use environments::tests::lookup;
pub use environments::{Environment, Launcher};
pub(crate) use generation::{FromRank, Generation, LineSocket, Place};
pub use job::{Job, Variable, run_id};
pub use nodes::Rules;
pub(crate) use nproc::check as check_limit;
pub use nproc::cores;
pub(crate) use once::claim;
pub use output::Output;
pub use rounds::run;

use crate::process::{
    auto_batch::{self, halves_batch},
    console::eprint_line,
};
use anyhow::{Context, Error, Result};
use std::{
    env,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

/// Starts `count` ranks of this program with this program's arguments and waits for them.
///
/// Rank 0 prints `why` as the reason for the number of ranks. The exit code is 0, or that of the first
/// failing rank (128 + signal if a signal killed it), or 128 + signal if this launcher received a stop signal.
///
/// # Errors
/// If there are no ranks or too many for this machine, or one cannot be started. If this process has launched
/// ranks before, or is a test: each rank runs the program from its start.
pub fn ranks(count: usize, why: &str) -> Result<ExitCode> {
    ranks_with(count, why, Vec::new())
}

/// [`ranks()`], with environment variables for the ranks.
pub(crate) fn ranks_with(count: usize, why: &str, mut variables: Vec<Variable>) -> Result<ExitCode> {
    check_limit(count)?;
    once::refuse_in_tests(count)?;
    once::claim(false)?;
    let program = env::current_exe().context("cannot find this program's own file")?;
    variables.push((WHY, why.into()));
    run(&Job { variables, ..Job::new(program, env::args_os().skip(1).collect(), count) })
}

/// Starts this program again in this process, with half the batch, if `error` asks for that.
///
/// Returns the error if it does not, or if the program cannot be started.
pub(crate) fn restart_after(error: Error) -> Error {
    if !halves_batch(&error) || once::refuse_in_tests(1).is_err() {
        return error;
    }
    eprint_line(&format!("starting again with half the batch: {error:#}"));
    let start = || -> Result<()> {
        let divisor = 2 * auto_batch::divisor().map_err(Error::msg)?;
        let mut command = Command::new(env::current_exe()?);
        command.args(env::args_os().skip(1)).env(auto_batch::DIVISOR, divisor.to_string());
        Err(command.exec().into())
    };
    match start() {
        Ok(()) => error,
        Err(why) => error.context(format!("cannot start this program again: {why:#}")),
    }
}

/// Runs `f` as every rank of a world of `count` processes, as `torch.multiprocessing.spawn` does.
///
/// If a launcher started this process, it is one rank, `f` runs here, and `count` is ignored. Otherwise
/// this starts `count` copies of this program with the same arguments and waits for them. Each copy runs
/// `f` when it makes the same call.
///
/// ```no_run
/// use collective::{InitMethod, Options, ProcessGroup, ReduceOp};
/// use std::process::ExitCode;
///
/// fn main() -> anyhow::Result<ExitCode> {
///     burn_ddp::launch::spawn(4, |_environment| {
///         let group = ProcessGroup::init(InitMethod::Env, Options::default())?;
///         let mut sum = [group.rank() as f32];
///         group.all_reduce(&mut sum, ReduceOp::Sum)?;
///         assert_eq!(sum, [6.0]);
///         Ok(ExitCode::SUCCESS)
///     })
/// }
/// ```
///
/// # Errors
/// Those of `f` and of [`ranks()`]. If a launcher's variables contradict each other, the error names the
/// variable. A second call in one program is an error.
pub fn spawn(count: usize, f: impl FnOnce(Environment) -> Result<ExitCode>) -> Result<ExitCode> {
    match Environment::detect()? {
        Some(environment) => {
            once::claim(false)?;
            f(environment)
        }
        None => ranks(count, &format!("{count} process(es) of this program")),
    }
}
