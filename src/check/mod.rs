//! `burn-ddp check`: verifies collectives on this machine.

mod cases;
mod ordering;

use crate::{
    context::{ContextArgs, Role, plan::Plan, values::positive, world_args::WorldArgs},
    device::{DeviceArg, faults, transport},
    launch::{self, world::Environment},
    process::console::{Console, print_line},
};
use anyhow::{Result, bail};
use burn::tensor::Device;
use clap::{Args, Subcommand};
use collective::{Options, ProcessGroup, Transport};
use serde::Serialize;
use std::{process::ExitCode, time::Duration};

/// Checks of the devices and transports of this machine.
#[derive(Subcommand, Clone, Debug)]
pub enum Check {
    /// Compare every collective on device tensors with its expected result
    Collectives(Ranks),
    /// Verify the ordering of collectives and computations on a device
    Ordering {
        #[command(flatten)]
        ranks: Ranks,
        #[command(flatten)]
        load: ordering::Load,
    },
}

impl Check {
    fn ranks(&self) -> &Ranks {
        match self {
            Check::Collectives(ranks) | Check::Ordering { ranks, .. } => ranks,
        }
    }

    /// Number of checks on this rank, and descriptions of those that failed.
    fn cases(&self, device: &Device, group: &ProcessGroup) -> Result<(usize, Vec<String>)> {
        match self {
            Check::Collectives(_) => cases::run(device, group),
            Check::Ordering { load, .. } => ordering::run(device, group, load),
        }
    }
}

#[derive(Args, Clone, Debug)]
pub struct Ranks {
    /// Device: auto, cpu, cuda or another of `burn-ddp devices`
    #[arg(long, default_value = "auto")]
    device: DeviceArg,
    /// Transport: auto, nccl, shm, tcp or mpi
    #[arg(long, default_value = "auto")]
    transport: Transport,
    /// Number of ranks on this machine; NCCL is used also with one rank
    #[arg(long, default_value_t = 2, value_parser = positive)]
    ranks: usize,
    /// Allow several ranks per GPU
    #[arg(long)]
    allow_shared_gpu: bool,
    /// Time limit of a collective in seconds
    #[arg(long, default_value_t = 60)]
    timeout: u32,
    #[command(flatten)]
    world: WorldArgs,
}

/// The result, printed as one line of JSON.
#[derive(Serialize)]
struct Report {
    device: String,
    ranks: usize,
    transport: String,
    checks: usize,
    wrong: Vec<String>,
}

/// Runs the check. Starts the ranks unless a launcher has.
///
/// # Errors
/// If ranks cannot be started, the group or a device fails, or a check fails.
pub fn run(check: &Check) -> Result<ExitCode> {
    let wanted = check.ranks();
    let launched = wanted.world.environment()?;
    if launched.is_none() && wanted.ranks > 1 {
        return launch::ranks(wanted.ranks, "check");
    }
    let environment = launched.unwrap_or(Environment::SOLO);
    let options = Options::default().timeout(Duration::from_secs(u64::from(wanted.timeout)));
    let group = wanted.world.connect(environment, wanted.transport, options)?;
    let Role { device, .. } = role(wanted, environment)?;
    let console = Console::new(group.rank() == 0);
    let transport = transport::attach(wanted.transport, device, &group, true, &|line| console.warn(line))?;
    let device_in_use = device.burn()?;
    faults::listen(|line| console.warn(line));
    let (checks, wrong) = check.cases(&device_in_use, &group)?;
    let all: Vec<Vec<String>> = group.all_gather_object(&wrong)?;
    let ranks = group.world_size();
    let wrong: Vec<String> = all
        .iter()
        .enumerate()
        .flat_map(|(rank, wrong)| wrong.iter().map(move |what| format!("rank {rank}: {what}")))
        .collect();
    if group.rank() == 0 {
        let report = Report { device: device.to_string(), ranks, transport, checks, wrong: wrong.clone() };
        print_line(&serde_json::to_string(&report)?);
    }
    group.destroy();
    match wrong.first() {
        Some(first) => bail!("{} of {checks} checks on {ranks} rank(s) failed: {first}", wrong.len()),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The device that a training run with the same flags would use.
fn role(wanted: &Ranks, environment: Environment) -> Result<Role> {
    let Ranks { device, allow_shared_gpu, .. } = *wanted;
    let args = ContextArgs { device, allow_shared_gpu, ..ContextArgs::default() };
    match Plan::decide(&args, Some(environment), crate::device::gpus(wanted.device))? {
        Plan::Train(role) => Ok(role),
        Plan::Launch { .. } => bail!("a rank cannot start ranks"),
    }
}
