//! `burn-ddp check`: verifies collectives on this machine.

mod cases;
mod ordering;

use crate::{
    context::{Context, ContextArgs, start, values::positive, world_args::WorldArgs},
    device::{DeviceArg, transport},
    process::console::print_line,
};
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use collective::Transport;
use serde::Serialize;
use std::process::ExitCode;

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

#[derive(Args, Clone, Debug)]
pub struct Ranks {
    /// Device: auto, cpu, cuda or another of `burn-ddp devices`
    #[arg(long, default_value = "auto")]
    device: DeviceArg,
    /// Transport: auto, nccl, shm, tcp or mpi
    #[arg(long, default_value = "auto")]
    transport: Transport,
    /// Number of ranks on this machine, without a launcher; NCCL is used also with one rank
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
    let (Check::Collectives(flags) | Check::Ordering { ranks: flags, .. }) = check;
    let Ranks { device, transport, ranks, allow_shared_gpu, timeout, ref world } = *flags;
    let args = ContextArgs::for_command(ranks, world)?;
    let args = ContextArgs { device, transport, allow_shared_gpu, timeout: timeout.into(), ..args };
    start(&args, |context| run_rank(check, transport, context))
}

fn run_rank(check: &Check, transport: Transport, context: &Context) -> Result<()> {
    let (group, console, device) = (context.group(), context.console(), context.local_device());
    let transport = match (context.world_size(), transport) {
        // A context of one rank uses NCCL only on request.
        (1, Transport::Auto) => {
            transport::attach(Transport::Auto, device, group, true, &|line| console.warn(line))?
        }
        _ => context.transport().into(),
    };
    let inner = context.device().clone().inner();
    // Number of checks on this rank, and descriptions of those that failed.
    let (checks, wrong) = match check {
        Check::Collectives(_) => cases::run(&inner, group),
        Check::Ordering { load, .. } => ordering::run(&inner, group, load),
    }?;
    let all: Vec<Vec<String>> = group.all_gather_object(&wrong)?;
    let ranks = group.world_size();
    let wrong: Vec<String> = all
        .iter()
        .enumerate()
        .flat_map(|(rank, wrong)| wrong.iter().map(move |what| format!("rank {rank}: {what}")))
        .collect();
    if context.is_main() {
        let report = Report { device: device.to_string(), ranks, transport, checks, wrong: wrong.clone() };
        print_line(&serde_json::to_string(&report)?)?;
    }
    match wrong.first() {
        Some(first) => bail!("{} of {checks} checks on {ranks} rank(s) failed: {first}", wrong.len()),
        None => Ok(()),
    }
}
