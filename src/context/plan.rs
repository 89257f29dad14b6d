//! Choice of mode, number of ranks and devices from the flags.

use super::{args::ContextArgs, replicas::Replicas, values::ModeArg};
use crate::{
    device::{Accelerator, DeviceArg, Gpus, LocalDevice},
    launch::{Environment, cores, nproc::Nproc},
};
use anyhow::{Error, Result, anyhow, bail};
use serde::Serialize;

/// Task of this process.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// Start ranks of the same program and wait for them.
    Launch { ranks: usize, why: String },
    /// Run as one rank.
    Train(Role),
}

/// Mode, rank and devices of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    pub mode: Mode,
    pub environment: Environment,
    /// Device, or main device in DP mode.
    pub device: LocalDevice,
    /// Replicas of `--mode dp`.
    pub replicas: Option<Replicas>,
    /// Reason for the choice, for display.
    pub why: String,
}

/// Resolved parallelism mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Single,
    Dp,
    Ddp,
}

impl Plan {
    /// Decides from the flags, the launcher's environment and the available GPUs.
    ///
    /// `gpus` is the reason if there are none.
    ///
    /// # Errors
    /// If flags contradict each other or name a missing device.
    pub fn decide(
        args: &ContextArgs,
        launched: Option<Environment>,
        gpus: Result<Gpus, String>,
    ) -> Result<Plan> {
        if let Some(environment) = launched.or((args.mode == ModeArg::Dp).then_some(Environment::SOLO)) {
            return Ok(Plan::Train(Role::decide(args, environment, gpus)?));
        }
        let shared = args.allow_shared_gpu;
        let (found, reason) = usable(args, gpus)?;
        let count = found.map(|gpus| gpus.count);
        let ranks = match args.nproc_per_node {
            Nproc::Auto if args.mode == ModeArg::Single => 1,
            nproc => nproc.count(count.ok_or_else(|| reason.clone()), cores())?,
        };
        match (args.device, count) {
            (DeviceArg::Gpu(kind, Some(number)), _) if ranks > 1 && !shared => {
                return Err(one_gpu(kind, number, ranks));
            }
            (_, Some(count)) if ranks > count && !shared => bail!(
                "--nproc-per-node {ranks}: there are only {count} GPU(s) and each rank needs one; add --device cpu or --allow-shared-gpu"
            ),
            _ => {}
        }
        let single = match args.mode {
            ModeArg::Single if ranks > 1 => bail!("--mode single has one rank, not --nproc-per-node {ranks}"),
            ModeArg::Single => true,
            ModeArg::Auto => ranks == 1,
            ModeArg::Ddp | ModeArg::Dp => false,
        };
        if !single {
            return Ok(Plan::Launch { ranks, why: format!("ddp with {ranks} rank(s) ({reason})") });
        }
        let why = format!("one device ({reason})");
        Ok(Plan::Train(Role::of_rank(args, Environment::SOLO, found, Mode::Single, why)?))
    }
}

impl Role {
    /// Decides for a rank that a launcher has started, as [`Plan::decide`] does.
    ///
    /// # Errors
    /// Those of [`Plan::decide`].
    pub fn decide(args: &ContextArgs, environment: Environment, gpus: Result<Gpus, String>) -> Result<Role> {
        if args.mode == ModeArg::Dp {
            if environment.world_size > 1 {
                bail!("--mode dp is one process, but a launcher started several; use --mode ddp");
            }
            return Self::one_process(args, &gpus);
        }
        let (found, reason) = usable(args, gpus)?;
        let mode = if args.mode == ModeArg::Single { Mode::Single } else { Mode::Ddp };
        Self::of_rank(args, environment, found, mode, reason)
    }

    /// The role of a rank, with one device.
    fn of_rank(
        args: &ContextArgs,
        environment: Environment,
        found: Option<Gpus>,
        mode: Mode,
        why: String,
    ) -> Result<Role> {
        let Environment { local_rank, world_size, local_world_size, own_gpu, .. } = environment;
        if args.mode == ModeArg::Single && world_size > 1 {
            bail!("--mode single, but the launcher set WORLD_SIZE={world_size}; leave out one of them");
        }
        if let Nproc::Count(n) = args.nproc_per_node
            // The flags recorded in config.json set this flag to the world size.
            && ![local_world_size, world_size].contains(&n)
        {
            bail!(
                "--nproc-per-node {n}, but the launcher started {local_world_size} rank(s) on this machine (LOCAL_WORLD_SIZE); use --nproc-per-node auto, or leave out the launcher"
            );
        }
        // ANCHOR: device
        let shared = args.allow_shared_gpu;
        let device = match (args.device, found) {
            (DeviceArg::Gpu(kind, Some(n)), _) if world_size > 1 && !shared && !own_gpu => {
                return Err(one_gpu(kind, n, world_size));
            }
            (DeviceArg::Gpu(kind, Some(n)), _) => LocalDevice::Gpu(kind, n),
            (_, Some(Gpus { kind: Accelerator::Cuda, count: 1 })) if own_gpu => {
                LocalDevice::Gpu(Accelerator::Cuda, 0)
            }
            (_, Some(Gpus { count, .. })) if local_rank >= count && !shared => {
                bail!(
                    "LOCAL_RANK={local_rank}, but this machine has only {count} visible GPU(s); --allow-shared-gpu lets ranks share them"
                )
            }
            (_, Some(Gpus { kind, count })) => LocalDevice::Gpu(kind, local_rank % count),
            (_, None) => LocalDevice::Cpu,
        };
        // ANCHOR_END: device
        Ok(Role { mode, environment, device, replicas: None, why })
    }

    /// The role of `--mode dp`.
    fn one_process(args: &ContextArgs, gpus: &Result<Gpus, String>) -> Result<Role> {
        if let nproc @ (Nproc::Count(2..) | Nproc::Gpu | Nproc::Cpu) = args.nproc_per_node {
            bail!("--mode dp is one process, not --nproc-per-node {nproc}; use --device-ids, or --mode ddp");
        }
        let replicas = Replicas::decide(args, gpus)?;
        let is_gpu = |device: &&LocalDevice| matches!(device, LocalDevice::Gpu(..));
        let device = replicas.devices.first().filter(is_gpu).copied().unwrap_or(LocalDevice::Cpu);
        let why = format!("replicas on {replicas}");
        let environment = Environment::SOLO;
        Ok(Role { mode: Mode::Dp, environment, device, replicas: Some(replicas), why })
    }
}

/// The GPUs of `--device`, and the reason for the choice.
fn usable(args: &ContextArgs, gpus: Result<Gpus, String>) -> Result<(Option<Gpus>, String)> {
    if !args.device_ids.is_empty() || args.output_device.is_some() || args.dp_reduce.is_some() {
        bail!(
            "--device-ids, --output-device and --dp-reduce are for --mode dp; in ddp mode each rank has one device"
        );
    }
    Ok(match (args.device, gpus) {
        (DeviceArg::Cpu, _) => (None, "--device cpu".into()),
        (DeviceArg::Auto, Err(reason)) => (None, format!("no GPU: {reason}")),
        (DeviceArg::Auto, Ok(gpus)) => (Some(gpus), format!("{} GPU(s) found", gpus.count)),
        (DeviceArg::Gpu(kind, _), Err(reason)) => bail!("--device {kind}: {reason}"),
        (DeviceArg::Gpu(kind, Some(n)), Ok(gpus)) if n >= gpus.count => {
            bail!("--device {kind}:{n}: this machine has {} GPUs, numbered from 0", gpus.count)
        }
        (DeviceArg::Gpu(kind, Some(_)), Ok(_)) => (Some(Gpus { kind, count: 1 }), "set by --device".into()),
        (DeviceArg::Gpu(_, None), Ok(gpus)) => (Some(gpus), "set by --device".into()),
    })
}

/// Error for several ranks on the GPU that `--device` names.
fn one_gpu(kind: Accelerator, number: usize, ranks: usize) -> Error {
    anyhow!(
        "--device {kind}:{number} would put all {ranks} ranks on one GPU; use --device {kind}, or --allow-shared-gpu"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::args::tests::parse;

    fn decide(flags: &str, launched: Option<Environment>, gpus: Option<usize>) -> Result<Plan> {
        let gpus = gpus.map(|count| Gpus { kind: Accelerator::Cuda, count });
        Plan::decide(&parse(flags)?, launched, gpus.ok_or_else(|| "libcuda.so not found".into()))
    }

    #[test]
    fn flags_launcher_and_machine_decide() {
        let rank =
            Environment { rank: 5, local_rank: 1, world_size: 8, local_world_size: 4, ..Environment::SOLO };
        let alone = Environment { rank: 1, world_size: 2, local_world_size: 2, own_gpu: true, ..rank };
        for (flags, launched, gpus, expected) in [
            ("", None, None, "2 ranks"),
            ("", None, Some(4), "4 ranks"),
            ("", None, Some(1), "cuda:0"),
            ("--mode single", None, None, "cpu"),
            ("--mode ddp", None, Some(1), "1 ranks"),
            ("--device cpu --nproc-per-node 4", None, Some(1), "4 ranks"),
            ("--device cuda:2", None, Some(4), "cuda:2"),
            ("--device cuda:2 --nproc-per-node 2 --allow-shared-gpu", None, Some(4), "2 ranks"),
            ("", Some(rank), Some(4), "cuda:1"),
            ("", Some(rank), None, "cpu"),
            // The local world size, and the world size as recorded in config.json.
            ("--nproc-per-node 4", Some(rank), None, "cpu"),
            ("--nproc-per-node 8", Some(rank), None, "cpu"),
            // A single visible GPU is that of the rank.
            ("", Some(alone), Some(1), "cuda:0"),
            ("--device cuda", Some(alone), Some(1), "cuda:0"),
            ("--device cuda:0", Some(alone), Some(1), "cuda:0"),
            ("", Some(alone), Some(2), "cuda:1"),
        ] {
            let found = match decide(flags, launched, gpus).expect(flags) {
                Plan::Launch { ranks, .. } => format!("{ranks} ranks"),
                Plan::Train(role) => role.device.to_string(),
            };
            assert_eq!(found, expected, "`{flags}`, {launched:?}, {gpus:?} GPUs");
        }
    }

    #[test]
    fn contradictions_are_errors_that_say_which() {
        let rank =
            Environment { rank: 1, local_rank: 1, world_size: 2, local_world_size: 2, ..Environment::SOLO };
        for (flags, launched, gpus, named) in [
            ("--device cuda", None, None, "libcuda.so"),
            ("--device cuda:4", None, Some(4), "cuda:4"),
            ("--mode single --nproc-per-node 2", None, None, "--nproc-per-node 2"),
            ("--nproc-per-node 3", None, Some(2), "only 2 GPU"),
            ("--nproc-per-node gpu", None, None, "--nproc-per-node gpu: no GPU: libcuda.so"),
            ("--nproc-per-node gpu --mode dp", None, None, "not --nproc-per-node gpu"),
            ("--device cuda", Some(rank), Some(1), "LOCAL_RANK=1"),
            ("--device cuda:0", Some(rank), Some(2), "cuda:0 would put all 2 ranks on one GPU"),
            ("--device cuda:1 --nproc-per-node 2", None, Some(3), "cuda:1 would put all 2 ranks on one GPU"),
            ("--dp-reduce tree", None, None, "--mode dp"),
        ] {
            let error = decide(flags, launched, gpus).expect_err(flags).to_string();
            assert!(error.contains(named), "`{flags}`: {error} should contain {named}");
        }
    }
}
