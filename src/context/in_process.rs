//! Ranks that are threads of this process, for tests, notebooks and programs that launch several times.

use super::{Context, ContextArgs, options, plan::Role, share};
use crate::{
    device::{DeviceArg, faults, gpus},
    launch::{Environment, check_limit},
    process::{
        exit::{is_consequence, of_rank},
        lock,
    },
};
use anyhow::{Context as _, Error, Result, ensure};
use collective::{ProcessGroup, device_error::panic_text};
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Mutex, PoisonError},
    thread,
};

/// Runs `program` on `world_size` ranks, each a thread of this process, and returns their results in rank order.
///
/// Unlike [`launch`](crate::launch()) it starts no process, does not read a launcher's variables, and leaves signals,
/// environment and exit code to the caller. It may be called any number of times, also in tests and, by a thread that
/// may block, in an asynchronous program. A rank has a GPU if there are enough of them; otherwise all use the CPU,
/// whose cores they share.
///
/// ```
/// use collective::ReduceOp;
///
/// let sums = burn_ddp::launch_threads(2, |context| {
///     let mut sum = [context.rank() as f32 + 1.0];
///     context.group().all_reduce(&mut sum, ReduceOp::Sum)?;
///     Ok(sum[0])
/// })?;
/// assert_eq!(sums, [3.0, 3.0]);
/// # anyhow::Ok(())
/// ```
///
/// The random generator of Burn's CPU backend belongs to the process, so that dropout differs between runs.
///
/// # Errors
/// If a rank fails: the error of the first one, with its number. The collectives of the other ranks then fail. If
/// `world_size` is 0 or more than this machine allows.
///
/// # Panics
/// If `program` panics on a rank.
pub fn launch_threads<T: Send>(
    world_size: usize,
    program: impl Fn(&Context) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    launch_threads_with(&ContextArgs::default(), world_size, program)
}

/// Runs `program` as [`launch_threads`] does, with device, transport, threads per rank and time limit from flags.
///
/// # Errors
/// Those of [`launch_threads`], and if flags contradict each other.
///
/// # Panics
/// If `program` panics on a rank.
pub fn launch_threads_with<T: Send>(
    args: &ContextArgs,
    world_size: usize,
    program: impl Fn(&Context) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    check_limit(world_size)?;
    ensure!(args.trace.is_none(), "--trace needs a process per rank; use launch in place of launch_threads");
    let gpus = gpus(args.device).and_then(|gpus| match args.device {
        // GPUs that nobody asked for are not shared.
        DeviceArg::Auto if gpus.count < world_size && !args.allow_shared_gpu => {
            Err(format!("{} GPU(s) for {world_size} ranks", gpus.count))
        }
        DeviceArg::Auto | DeviceArg::Cpu | DeviceArg::Gpu(..) => Ok(gpus),
    });
    let local_world_size = world_size;
    let role = |rank| {
        let environment =
            Environment { rank, local_rank: rank, world_size, local_world_size, ..Environment::SOLO };
        Role::decide(args, environment, gpus.clone())
    };
    let roles = (0..world_size).map(role).collect::<Result<Vec<_>>>()?;
    let groups = ProcessGroup::threads(world_size, options(args).transport(args.transport))?;
    let failures = Mutex::new(Vec::new());
    let run = |role: Role, group: ProcessGroup| {
        let rank = group.rank();
        let run = || run_rank(args, role, group.clone(), &program);
        // The error of the rank, or its panic.
        let failure = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(value)) => return Some(value),
            Ok(Err(error)) => Ok(error),
            Err(panic) => Err(panic),
        };
        let reason = match &failure {
            Ok(error) => format!("{error:#}"),
            Err(panic) => format!("it panicked: {}", panic_text(&**panic).unwrap_or_default()),
        };
        // Before the other ranks fail.
        lock(&failures).push((rank, failure));
        group.abort(reason);
        None
    };
    let run = &run;
    let values = thread::scope(|scope| {
        let ranks = roles.into_iter().zip(groups).map(|(role, group)| {
            let thread = thread::Builder::new().name(format!("rank {}", group.rank()));
            thread.spawn_scoped(scope, move || run(role, group)).context("cannot start a thread")
        });
        // All are started before the first one is joined.
        let ranks = ranks.collect::<Result<Vec<_>>>()?;
        anyhow::Ok(ranks.into_iter().filter_map(|rank| rank.join().ok().flatten()).collect())
    })?;
    let mut failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failures.is_empty() {
        return Ok(values);
    }
    let follows = |(rank, failure): &(usize, thread::Result<Error>)| {
        failure.as_ref().is_ok_and(|error| is_consequence(error, Some(*rank)))
    };
    let first = failures.iter().position(|failure| !follows(failure));
    match failures.swap_remove(first.unwrap_or(0)) {
        (rank, Ok(error)) if format!("{error:#}").starts_with(&of_rank(rank)) => Err(error),
        (rank, Ok(error)) => Err(error.context(format!("rank {rank}"))),
        (_, Err(panic)) => resume_unwind(panic),
    }
}

fn run_rank<T>(
    args: &ContextArgs,
    role: Role,
    group: ProcessGroup,
    program: &impl Fn(&Context) -> Result<T>,
) -> Result<T> {
    let device = role.device;
    faults::run(&device.to_string(), || {
        device.check()?;
        let threads = share(args, group.world_size());
        // Burn's CPU backend computes in the thread pool of the calling thread.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread().build();
        let _pool = pool.with_context(|| format!("cannot start {threads} compute thread(s)"))?;
        let context = Context::from_group(args, role, threads, group)?;
        let value = program(&context)?;
        context.group.destroy();
        Ok(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use collective::{Error as Failed, ReduceOp};

    #[test]
    fn ranks_have_numbers_a_group_and_results_in_order() -> Result<()> {
        for world_size in [1, 3, 1] {
            let sums = launch_threads(world_size, |context| {
                let mut sum = [1f32];
                context.group().all_reduce(&mut sum, ReduceOp::Sum)?;
                Ok((context.rank(), context.environment().local_rank, context.is_main(), sum[0]))
            })?;
            let expected = (0..world_size).map(|rank| (rank, rank, rank == 0, world_size as f32));
            assert_eq!(sums, expected.collect::<Vec<_>>());
        }
        Ok(())
    }

    #[test]
    fn the_end_of_a_rank_is_an_error_of_the_others() {
        let ended = launch_threads(2, |context| match context.rank() {
            0 => Ok(context.group().barrier()?),
            _ => Ok(()),
        });
        let error = ended.expect_err("rank 1 has made no call");
        assert!(matches!(error.downcast_ref(), Some(Failed::PeerLost { rank: 1, .. })), "{error:#}");
    }

    #[test]
    #[should_panic(expected = "on rank 1")]
    fn a_panic_of_a_rank_is_resumed() {
        let _ = launch_threads(2, |context| {
            assert!(context.rank() == 0, "on rank {}", context.rank());
            Ok(context.group().barrier()?)
        });
    }

    #[test]
    fn flags_and_world_sizes_are_checked() {
        for (world_size, flags, words) in [
            (0, "", "0 ranks"),
            (1 << 30, "", "the limit is"),
            (2, "--mode single", "--mode single"),
            (2, "--device cpu --transport tcp", "transport tcp"),
        ] {
            let args = crate::context::args::tests::parse(flags).expect(flags);
            let error = launch_threads_with(&args, world_size, |_| Ok(())).expect_err(flags);
            assert!(format!("{error:#}").contains(words), "{flags}: {error:#}");
        }
    }
}
