//! Program start: launches the ranks, or runs the program as one of them.

use super::{
    Context, ContextArgs,
    plan::{Plan, Role},
    recovery::Recovery,
    trace::Trace,
};
#[cfg(feature = "cuda")]
use crate::device::kernel_cache;
use crate::{
    device::{LocalDevice, faults, gpus},
    launch::{Variable, claim, ranks_with, restart_after},
    process::{exit, stop},
};
use anyhow::Result;
use std::{env, fs, path::PathBuf, process::ExitCode, sync::atomic::Ordering};

/// Environment variables that Burn and the driver read, without those that are set.
fn variables() -> Vec<Variable> {
    // Makes Burn load optimizer state into host memory. Its default is the first GPU on every rank. The first optimizer
    // step moves the state to this rank's device.
    let mut variables: Vec<Variable> = vec![("BURN_DEVICE", "flex".into())];
    #[cfg(feature = "cuda")]
    variables.extend(kernel_cache::driver_folder().map(|path| (kernel_cache::DRIVER_FOLDER, path.into())));
    variables.retain(|(name, _)| env::var_os(name).is_none());
    variables
}

/// Sets environment variables if this process has a single thread.
fn set_if_alone(variables: &[Variable]) {
    if fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1) {
        for (name, value) in variables {
            // SAFETY: no other thread exists, and only this one could start any, so that nothing else accesses the
            // environment.
            unsafe { env::set_var(name, value) };
        }
    }
}

/// Runs `program` on every rank: one process per GPU, or two on the CPU.
///
/// A process started by a launcher (`burn-ddp launch`, torchrun, srun, mpirun, Kubernetes) is one rank and runs
/// `program` itself. Otherwise this starts one copy of the program per rank and terminates all of them if one fails.
/// Returns the exit code for `main`. Errors are printed once.
///
/// Call it once per program and first in `main`, because each rank runs the program from its start. Tests and
/// programs that launch several times use [`launch_threads`](crate::launch_threads).
///
/// Under `burn-ddp launch --recover live`, `program` runs again in the same process when another rank was replaced.
///
/// # State of the process
/// A rank receives SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 in a thread of burn-ddp; a program's own handler of SIGUSR1
/// or SIGUSR2 is kept. Threads that exist already, such as rayon's, stay in use. If this thread is the only one, the
/// environment variables `BURN_DEVICE` and `CUDA_CACHE_PATH` are set to `flex` and to a folder in the kernel cache,
/// unless they are set already. On a GPU, a panic hook calls the one before it except for failures of the device,
/// which are returned as errors; and the first use of the device installs a logger if the program has none. A logger
/// of the program calls [`inspect`](crate::device::faults::inspect), so that device failures end the run.
///
/// ```no_run
/// use collective::ReduceOp;
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     burn_ddp::launch(|context| {
///         let mut sum = [context.rank() as f32];
///         context.group().all_reduce(&mut sum, ReduceOp::Sum)?;
///         context.print(&format!("sum over {} ranks: {}", context.world_size(), sum[0]));
///         Ok(())
///     })
/// }
/// ```
pub fn launch(program: impl FnMut(&Context) -> Result<()>) -> ExitCode {
    launch_with(&ContextArgs::default(), program)
}

/// Runs `program` as [`launch`] does, with devices, processes and transport from flags.
pub fn launch_with(args: &ContextArgs, program: impl FnMut(&Context) -> Result<()>) -> ExitCode {
    exit::report(start(args, program))
}

/// Launches the ranks, or runs `program` if this process is a rank.
pub(crate) fn start(args: &ContextArgs, program: impl FnMut(&Context) -> Result<()>) -> Result<ExitCode> {
    let variables = variables();
    set_if_alone(&variables);
    let launched = args.world.environment()?;
    match Plan::decide(args, launched, gpus(args.device))? {
        Plan::Launch { ranks, why } => ranks_with(ranks, &why, variables),
        Plan::Train(role) => {
            let ended = faults::run(&role.device.to_string(), || {
                claim(launched.is_none())?;
                stop::watch()?;
                run_generations(args, &role, program)
            });
            // This crate's launcher starts the ranks again itself.
            let is_alone = role.environment.world_size == 1 && env::var_os(exit::LAUNCHED).is_none();
            ended.map_err(|error| if is_alone { restart_after(error) } else { error })
        }
    }
}

/// Runs `program`, and again in each generation of the group whose predecessor has failed.
fn run_generations(
    args: &ContextArgs,
    role: &Role,
    mut program: impl FnMut(&Context) -> Result<()>,
) -> Result<ExitCode> {
    // With NCCL, a step that fails on the device may have changed the parameters.
    let supported =
        role.device == LocalDevice::Cpu && role.replicas.is_none() && args.world.init_method.is_none();
    let recovery = if supported { Recovery::open()? } else { None };
    let start_trace = |path: &PathBuf| Trace::start(path, role.environment.is_main());
    let trace = args.trace.as_ref().map(start_trace).transpose()?;
    let mut role = role.clone();
    loop {
        if let Some(recovery) = &recovery {
            role.environment = recovery.select(role.environment);
        }
        let run = || {
            let context = Context::open(args, role.clone(), recovery.clone())?;
            if let Err(error) = program(&context) {
                if recovery.is_some() {
                    context.group.abort(format!("{error:#}"));
                }
                return Err(error);
            }
            if let Some(trace) = &trace {
                trace.write(&context.group);
            }
            context.group.destroy();
            Ok(match context.stop_signal.load(Ordering::Relaxed) {
                0 => ExitCode::SUCCESS,
                signal => ExitCode::from(exit::signal_code(signal)),
            })
        };
        let ended = { run }();
        match (ended, &recovery) {
            (Err(error), Some(recovery)) => recovery.next_after(error)?,
            (ended, _) => {
                if let (Err(_), Some(trace)) = (&ended, &trace) {
                    trace.write_own(role.environment.rank);
                }
                return ended;
            }
        }
    }
}
