//! `burn-ddp check`: whether this machine's devices compute and communicate rightly.

mod cases;

use crate::{
    cli::{DeviceArg, positive},
    config::{Plan, Role},
    console::{Console, Style, print_line},
    data_plane, launch,
    world::{Environment, WorldArgs},
};
use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use collective::{Options, Transport};
use serde::Serialize;
use std::{process::ExitCode, time::Duration};

/// What can be checked.
#[derive(Subcommand, Clone, Debug)]
pub enum Check {
    /// Every collective on tensors of a device, against what it should give
    Collectives(Collectives),
}

#[derive(Args, Clone, Debug)]
pub struct Collectives {
    /// As of `burn-ddp train`
    #[arg(long, default_value = "auto")]
    device: DeviceArg,
    /// As of `burn-ddp train`
    #[arg(long, default_value = "auto")]
    transport: Transport,
    /// Ranks, all on this machine; NCCL takes part even if there is one
    #[arg(long, default_value_t = 2, value_parser = positive)]
    ranks: usize,
    /// Let ranks share GPUs
    #[arg(long)]
    allow_shared_gpu: bool,
    /// Seconds a collective may take
    #[arg(long, default_value_t = 60)]
    timeout: u32,
    #[command(flatten)]
    world: WorldArgs,
}

/// What came out, as a line of JSON.
#[derive(Serialize)]
struct Report {
    device: String,
    ranks: usize,
    transport: String,
    checks: usize,
    wrong: Vec<String>,
}

/// Runs the check, starting the ranks if nobody did.
pub fn run(check: &Check) -> Result<ExitCode> {
    let Check::Collectives(check) = check;
    let launched = check.world.environment()?;
    if launched.is_none() && check.ranks > 1 {
        return launch::ranks(check.ranks, "check");
    }
    let environment = launched.unwrap_or(Environment::SOLO);
    let options = Options::default().timeout(Duration::from_secs(u64::from(check.timeout)));
    let group = environment.connect(check.transport, options, &check.world)?;
    let Role { device, .. } = role(check, environment)?;
    let console = Console::new(Style::choose(crate::cli::ProgressArg::Plain, group.rank() == 0), 1);
    let transport = data_plane::attach(check.transport, device, &group, true, &console)?;
    let (checks, wrong) = cases::run(&device.burn()?, &group)?;
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
        Some(first) => {
            bail!("{} of {checks} collectives on {ranks} rank(s) were wrong: {first}", wrong.len())
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The device that a training run with the same flags would have.
fn role(check: &Collectives, environment: Environment) -> Result<Role> {
    let mut args = crate::cli::Args::try_parse_from(["check"])?;
    (args.device, args.allow_shared_gpu) = (check.device, check.allow_shared_gpu);
    match Plan::decide(&args, Some(environment), crate::device::gpus(check.device))? {
        Plan::Train(role) => Ok(role),
        Plan::Launch { .. } => bail!("a rank cannot start ranks"),
    }
}
