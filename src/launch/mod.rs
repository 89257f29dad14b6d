//! Starts one process per rank, watches them and ends them together.
//!
//! Two doors and one supervisor: [`ranks()`] and [`spawn`] start this very program again, for a
//! program that nobody launched; [`command::run`] is `burn-ddp launch`, which starts any program,
//! files its output, starts again after a failure and agrees with other machines' launchers.
//!
//! ```text
//! command, spawn → rounds → supervisor → ranks → child   one process, in a group of its own
//!                     ↓          ↓          ↓ → guard   kills them if the launcher is killed
//!                   nodes ← (verdicts)      ↓ → output  prefixes and files what they print
//! ```

mod child;
pub mod command;
mod ending;
mod environment;
mod guard;
mod limit;
mod nodes;
mod output;
mod port;
mod ranks;
mod rounds;
mod signals;
mod supervisor;

pub use environment::WHY;

use crate::{device::cores, world::Environment};
use anyhow::{Context, Result};
use collective::Secret;
use environment::Round;
use output::Output;
use port::MasterPort;
use ranks::Job;
use std::process::ExitCode;

/// Starts `count` ranks of this program with this program's arguments and waits for them. `why` is
/// what rank 0 says about the number of ranks.
///
/// The exit code is 0, or the first failing rank's (128 + signal if a signal killed it), or 128 +
/// signal if this launcher was told to stop.
///
/// # Errors
/// If there are no ranks or far too many, or one cannot be started.
pub fn ranks(count: usize, why: &str) -> Result<ExitCode> {
    limit::check(count, cores(), &|name| std::env::var(name).ok())?;
    let job = Job {
        program: std::env::current_exe().context("cannot find this program's own file")?.into(),
        args: std::env::args_os().skip(1).collect(),
        output: Output::Inherited,
        poll: supervisor::POLL,
        why: why.to_owned(),
    };
    let signals = signals::catch()?;
    let port = MasterPort::handed("127.0.0.1")?;
    let round = Round::alone(count, port.number(), Secret::random());
    let ending = supervisor::run(&job, &round, &port, None, &signals)?;
    Ok(ending.report("the job was stopped"))
}

/// Runs `f` as every rank of a world of `count` processes, as `torch.multiprocessing.spawn` does.
///
/// If a launcher started this process, it is one rank and `f` runs here, whatever `count` says.
/// Otherwise this starts `count` copies of this program with the same arguments, each of which comes
/// to this same call, and waits for them; `f` then runs in the copies alone.
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
/// Those of `f`; naming the variable, if a launcher's variables contradict each other; those of
/// [`ranks()`].
pub fn spawn<F>(count: usize, f: F) -> Result<ExitCode>
where
    F: FnOnce(Environment) -> Result<ExitCode>,
{
    match Environment::detect()? {
        Some(environment) => f(environment),
        None => ranks(count, &format!("{count} process(es) of this program")),
    }
}
