//! `burn-ddp launch`: torchrun's flags, for any program.

use super::{
    limit,
    nodes::Rules,
    output::Output,
    ranks::Job,
    rounds::{self, Plan},
    signals,
};
use crate::{
    cli::{DeviceArg, positive},
    device::{cores, gpus},
    run_folder::timestamp,
};
use anyhow::{Result, bail};
use clap::Parser;
use collective::Secret;
use std::{ffi::OsString, path::PathBuf, process::ExitCode, str::FromStr, time::Duration};

/// Where the launchers of several machines meet unless told otherwise, as in torchrun.
pub const NODES_PORT: u16 = 29_500;

/// Start any program once per rank, watch the ranks, and end or restart them together.
///
/// Flags and environment are torchrun's; flags that are not given are taken from PET_NNODES,
/// PET_NPROC_PER_NODE and their like, which Kubernetes training operators set.
#[derive(Parser, Clone, Debug)]
pub struct LaunchArgs {
    /// Ranks on this machine: a number, gpu (one per GPU), cpu (one per core) or auto (gpu, or cpu where
    /// there is none) [default: 1]
    #[arg(long, alias = "nproc_per_node", value_name = "N|auto|gpu|cpu", help_heading = "World")]
    pub nproc_per_node: Option<Nproc>,
    /// Machines, or the fewest and the most with which to go on after a failure [default: 1]
    #[arg(long, value_name = "N|MIN:MAX", help_heading = "World")]
    pub nnodes: Option<Nnodes>,
    /// This machine's number; 0 is the one at --master-addr
    #[arg(long, alias = "node_rank", value_name = "R", help_heading = "World")]
    pub node_rank: Option<usize>,
    /// Where machine 0 is reached [default: 127.0.0.1 for one machine]
    #[arg(long, alias = "master_addr", value_name = "HOST", help_heading = "World")]
    pub master_addr: Option<String>,
    /// One machine: where rank 0 listens [default: a free port]. Several: where the launchers meet [default:
    /// 29500]
    #[arg(long, alias = "master_port", value_name = "PORT", help_heading = "World")]
    pub master_port: Option<u16>,
    /// Seconds to wait for enough machines to come
    #[arg(long, default_value_t = 600.0, value_name = "S", value_parser = seconds, help_heading = "World")]
    pub join_timeout: f64,
    /// Seconds to wait for more machines, once there are enough
    #[arg(long, default_value_t = 10.0, value_name = "S", value_parser = seconds, help_heading = "World")]
    pub last_call: f64,

    /// How often all ranks are started again after a failure [default: 0]
    #[arg(long, alias = "max_restarts", value_name = "K", help_heading = "Failures")]
    pub max_restarts: Option<usize>,
    /// Seconds between two looks at the ranks
    #[arg(long, alias = "monitor_interval", default_value_t = 0.01, value_name = "S", value_parser = seconds, help_heading = "Failures")]
    pub monitor_interval: f64,

    /// Folder for what the ranks print: JOB/attempt0/rank0.stdout.log and its like, in a folder for each job
    #[arg(long, alias = "log_dir", value_name = "DIR", help_heading = "Output")]
    pub log_dir: Option<PathBuf>,
    /// Show what the ranks print, too, although it is filed
    #[arg(long, requires = "log_dir", help_heading = "Output")]
    pub tee: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

/// `--nproc-per-node`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nproc {
    Count(usize),
    Auto,
    Gpu,
    Cpu,
}

impl FromStr for Nproc {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Nproc::Auto),
            "gpu" => Ok(Nproc::Gpu),
            "cpu" => Ok(Nproc::Cpu),
            number => positive(number)
                .map(Nproc::Count)
                .map_err(|_| "expected auto, gpu, cpu or a number from 1".into()),
        }
    }
}

impl Nproc {
    /// The number it means here.
    ///
    /// # Errors
    /// If GPUs are asked for and there is none.
    fn count(self, gpus: impl Fn() -> Result<usize, String>) -> Result<usize> {
        match (self, gpus()) {
            (Nproc::Count(count), _) => Ok(count),
            (Nproc::Auto | Nproc::Gpu, Ok(count)) => Ok(count),
            (Nproc::Gpu, Err(why)) => bail!("--nproc-per-node gpu: {why}"),
            (Nproc::Auto, Err(_)) | (Nproc::Cpu, _) => Ok(cores()),
        }
    }
}

/// `--nnodes`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nnodes {
    pub min: usize,
    pub max: usize,
}

impl FromStr for Nnodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        match (positive(min), positive(max)) {
            (Ok(min), Ok(max)) if min <= max => Ok(Nnodes { min, max }),
            (Ok(_), Ok(_)) => Err("MIN:MAX with MIN above MAX".into()),
            (Err(_), _) | (_, Err(_)) => Err("expected a number from 1, or MIN:MAX".into()),
        }
    }
}

/// Starts the ranks and waits for them.
///
/// # Errors
/// If flags contradict each other, the program cannot be started, or other machines do not come.
pub fn run(args: &LaunchArgs) -> Result<ExitCode> {
    let plan = plan(args, |name| std::env::var(name).ok(), || gpus(DeviceArg::Auto).map(|gpus| gpus.count))?;
    let Some((program, rest)) = args.command.split_first() else { bail!("there is no program to start") };
    let output = match &args.log_dir {
        Some(dir) => Output::Filed { dir: dir.clone(), tee: args.tee },
        None => Output::Prefixed,
    };
    let job = Job {
        program: program.clone(),
        args: rest.to_vec(),
        output,
        poll: Duration::from_secs_f64(args.monitor_interval),
        why: format!("started by burn-ddp launch, {} rank(s) on this machine", plan.ranks),
    };
    rounds::run(&job, &plan, &signals::catch()?)
}

/// A flag, or else what an operator set for torchrun in its place.
fn or_pet<T: FromStr<Err: std::fmt::Display>>(
    flag: Option<T>,
    name: &str,
    lookup: &impl Fn(&str) -> Option<String>,
) -> Result<Option<T>> {
    if flag.is_some() {
        return Ok(flag);
    }
    let Some(text) = lookup(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    match text.parse() {
        Ok(value) => Ok(Some(value)),
        Err(error) => bail!("environment variable {name}={text}: {error}"),
    }
}

fn plan(
    args: &LaunchArgs,
    lookup: impl Fn(&str) -> Option<String>,
    gpus: impl Fn() -> Result<usize, String>,
) -> Result<Plan> {
    let nproc = or_pet(args.nproc_per_node, "PET_NPROC_PER_NODE", &lookup)?.unwrap_or(Nproc::Count(1));
    let nnodes = or_pet(args.nnodes, "PET_NNODES", &lookup)?.unwrap_or(Nnodes { min: 1, max: 1 });
    let node = or_pet(args.node_rank, "PET_NODE_RANK", &lookup)?;
    let master_addr = or_pet(args.master_addr.clone(), "PET_MASTER_ADDR", &lookup)?;
    let master_port = or_pet(args.master_port, "PET_MASTER_PORT", &lookup)?.filter(|port| *port != 0);
    let (node, master_addr) = match (nnodes.max, node, master_addr) {
        (1, Some(node @ 1..), _) => bail!("--node-rank {node}, but --nnodes is 1"),
        (1, _, address) => (0, address.unwrap_or_else(|| "127.0.0.1".into())),
        (_, None, _) => bail!("several nodes: give each its --node-rank, 0 for the one at --master-addr"),
        (_, _, None) => bail!("several nodes: --master-addr must say where the machine with node rank 0 is"),
        (most, Some(node), Some(_)) if node >= most => {
            bail!("--node-rank {node} must be below --nnodes {most}; nodes count from 0")
        }
        (_, Some(node), Some(address)) => (node, address),
    };
    let ranks = nproc.count(gpus)?;
    limit::check(ranks, cores(), &lookup)?;
    Ok(Plan {
        ranks,
        rules: Rules {
            min: nnodes.min,
            max: nnodes.max,
            join_timeout: Duration::from_secs_f64(args.join_timeout),
            last_call: Duration::from_secs_f64(args.last_call),
        },
        node,
        master_addr,
        master_port,
        max_restarts: or_pet(args.max_restarts, "PET_MAX_RESTARTS", &lookup)?.unwrap_or(0),
        run_id: run_id()?,
    })
}

/// A new job's name: when it started, and something random for jobs of the same second.
fn run_id() -> Result<String> {
    let random: String = Secret::random().expose().chars().take(6).collect();
    Ok(format!("{}-{random}", timestamp()?))
}

/// A time from a millisecond to a week.
pub fn seconds(text: &str) -> Result<f64, String> {
    let fits = |s: &f64| (0.001..=604_800.0).contains(s);
    text.parse().ok().filter(fits).ok_or_else(|| "expected seconds, from 0.001 to 604800".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(flags: &str, vars: &[(&str, &str)], gpus: Option<usize>) -> Result<Plan> {
        let flags = ["launch"].into_iter().chain(flags.split_whitespace()).chain(["--", "true"]);
        let args = LaunchArgs::try_parse_from(flags)?;
        let lookup = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
        plan(&args, lookup, || gpus.ok_or_else(|| "no driver".into()))
    }

    #[test]
    fn ranks_are_counted_as_asked() {
        let ranks = |flags: &str, gpus| planned(flags, &[], gpus).map(|plan| plan.ranks).ok();
        assert_eq!(ranks("", Some(8)), Some(1));
        assert_eq!(ranks("--nproc-per-node 3", None), Some(3));
        assert_eq!(ranks("--nproc_per_node=gpu", Some(8)), Some(8));
        assert_eq!(ranks("--nproc-per-node auto", Some(8)), Some(8));
        assert_eq!(ranks("--nproc-per-node auto", None), Some(cores()));
        assert_eq!(ranks("--nproc-per-node cpu", Some(8)), Some(cores()));
        assert_eq!(ranks("--nproc-per-node gpu", None), None);
    }

    #[test]
    fn an_operators_variables_stand_for_flags() {
        let vars = [
            ("PET_NNODES", "2:4"),
            ("PET_NPROC_PER_NODE", "2"),
            ("PET_NODE_RANK", "1"),
            ("PET_MASTER_ADDR", "job-master-0"),
            ("PET_MASTER_PORT", "23456"),
            ("PET_MAX_RESTARTS", "3"),
        ];
        let plan = planned("--max-restarts 1", &vars, None).expect("a plan");
        assert_eq!((plan.rules.min, plan.rules.max, plan.ranks, plan.node), (2, 4, 2, 1));
        assert_eq!((plan.master_addr.as_str(), plan.master_port), ("job-master-0", Some(23456)));
        assert_eq!(plan.max_restarts, 1, "a flag goes before a variable");
    }

    #[test]
    fn contradictions_name_the_flag() {
        for (flags, named) in [
            ("--nnodes 2 --master-addr h", "--node-rank"),
            ("--nnodes 2 --node-rank 0", "--master-addr"),
            ("--nnodes 2 --node-rank 2 --master-addr h", "--node-rank 2"),
            ("--node-rank 1", "--nnodes"),
            ("--nnodes 3:2", "MIN:MAX"),
            ("--nproc-per-node 0", "--nproc-per-node"),
            ("--tee", "--log-dir"),
        ] {
            let error = format!("{:#}", planned(flags, &[], None).expect_err(flags));
            assert!(error.contains(named), "`{flags}`: {error} should name {named}");
        }
        let error = planned("", &[("PET_NNODES", "x")], None).expect_err("no number").to_string();
        assert!(error.contains("PET_NNODES=x"), "{error}");
    }
}
