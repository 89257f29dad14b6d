//! `burn-ddp launch`: torchrun's flags for any program.

use crate::{
    context::values::{positive, seconds},
    device::{DeviceArg, gpus},
    launch::{self, Job, Output, Recover, Round, Rules, cores, nproc::Nproc},
    run::timestamp,
};
use anyhow::{Result, bail};
use clap::Parser;
use std::{ffi::OsString, path::PathBuf, process::ExitCode, str::FromStr, time::Duration};

/// Start a program once per rank and stop or restart all ranks together.
///
/// Flags and environment are those of torchrun. Defaults come from PET_NNODES, PET_NPROC_PER_NODE and the
/// other PET_ variables, which Kubernetes training operators set.
#[derive(Parser, Clone, Debug)]
pub struct LaunchArgs {
    /// Ranks on this machine: a number, gpu (one per GPU), cpu (one per core) or auto [default: 1]
    ///
    /// auto is one per GPU, or 2 on a machine without GPU.
    #[arg(long, alias = "nproc_per_node", value_name = "N|auto|gpu|cpu", help_heading = "World")]
    pub nproc_per_node: Option<Nproc>,
    /// Number of machines, or the minimum and maximum after a failure [default: 1]
    #[arg(long, value_name = "N|MIN:MAX", help_heading = "World")]
    pub nnodes: Option<Nnodes>,
    /// Index of this machine; 0 is the one at --master-addr
    #[arg(long, alias = "node_rank", value_name = "R", help_heading = "World")]
    pub node_rank: Option<usize>,
    /// Address of machine 0 [default: 127.0.0.1 for one machine]
    #[arg(long, alias = "master_addr", value_name = "HOST", help_heading = "World")]
    pub master_addr: Option<String>,
    /// Port of machine 0 [default: a free port for one machine, 29500 for several]
    ///
    /// With one machine, rank 0 listens there; with several, the launcher of machine 0.
    #[arg(long, alias = "master_port", value_name = "PORT", help_heading = "World")]
    pub master_port: Option<u16>,
    /// Time limit for the minimum number of machines in seconds
    #[arg(long, default_value_t = 600.0, value_name = "S", value_parser = seconds, help_heading = "World")]
    pub join_timeout: f64,
    /// Waiting time for further machines in seconds
    #[arg(long, default_value_t = 10.0, value_name = "S", value_parser = seconds, help_heading = "World")]
    pub last_call: f64,

    /// Maximum number of restarts after a failure [default: 0]
    #[arg(long, alias = "max_restarts", value_name = "K", help_heading = "Failures")]
    pub max_restarts: Option<usize>,
    /// What to do with the other ranks after a failure: restart them, or replace the failed one only
    ///
    /// With live, the others keep their processes, devices and parameters. A replaced rank receives the parameters
    /// from another one, and the interrupted step is computed again. On CPUs; --max-restarts counts the replacements.
    /// With several machines, node 0's value holds for all.
    #[arg(long, value_enum, default_value_t = Recover::Restart, value_name = "HOW", help_heading = "Failures")]
    pub recover: Recover,
    /// Polling interval in seconds
    #[arg(long, alias = "monitor_interval", default_value_t = 0.01, value_name = "S", value_parser = seconds, help_heading = "Failures")]
    pub monitor_interval: f64,

    /// Folder for the output of the ranks
    ///
    /// Files are named JOB/attempt0/rank0.stdout.log.
    #[arg(long, alias = "log_dir", value_name = "DIR", help_heading = "Output")]
    pub log_dir: Option<PathBuf>,
    /// Print the output of the ranks in addition to --log-dir
    #[arg(long, requires = "log_dir", help_heading = "Output")]
    pub tee: bool,

    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

/// Value of `--nnodes`.
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
/// If flags contradict each other, the program cannot be started, or other machines do not join.
pub fn run(args: &LaunchArgs) -> Result<ExitCode> {
    let job = job(args, |name| std::env::var(name).ok(), || gpus(DeviceArg::Auto).map(|gpus| gpus.count))?;
    launch::run(&job.with_shared_secret()?)
}

/// The value of a flag, or of the environment variable that training operators set in its place.
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

fn job(
    args: &LaunchArgs,
    lookup: impl Fn(&str) -> Option<String>,
    gpus: impl FnOnce() -> Result<usize, String>,
) -> Result<Job> {
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
    let max_restarts = or_pet(args.max_restarts, "PET_MAX_RESTARTS", &lookup)?.unwrap_or(0);
    if args.recover == Recover::Live && max_restarts == 0 && node == 0 {
        bail!("--recover live needs --max-restarts, the number of times that ranks may be replaced");
    }
    let ranks = nproc.count(gpus(), cores())?;
    let Some((program, rest)) = args.command.split_first() else { bail!("there is no program to start") };
    Ok(Job {
        output: Output { prefixed: args.log_dir.is_none() || args.tee, dir: args.log_dir.clone() },
        poll: Duration::from_secs_f64(args.monitor_interval),
        variables: vec![(
            launch::WHY,
            format!("started by burn-ddp launch, {ranks} rank(s) on this machine").into(),
        )],
        rules: Rules {
            min: nnodes.min,
            max: nnodes.max,
            join_timeout: Duration::from_secs_f64(args.join_timeout),
            last_call: Duration::from_secs_f64(args.last_call),
        },
        node,
        master_addr,
        master_port,
        round: Round {
            max_restarts,
            recover: args.recover,
            sizes: vec![ranks],
            run_id: launch::run_id(timestamp()?),
            ..Round::default()
        },
        ..Job::new(program, rest.to_vec(), ranks)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(flags: &str, vars: &str) -> Result<Job> {
        let flags = ["launch"].into_iter().chain(flags.split_whitespace()).chain(["--", "true"]);
        let args = LaunchArgs::try_parse_from(flags)?;
        job(&args, launch::lookup(vars), || Err("no driver".into()))
    }

    #[test]
    fn an_operators_variables_stand_for_flags() {
        let vars = "PET_NNODES=2:4 PET_NPROC_PER_NODE=2 PET_NODE_RANK=1 PET_MASTER_ADDR=job-master-0 PET_MASTER_PORT=23456 PET_MAX_RESTARTS=3";
        let config = parsed("--max-restarts 1 --nproc_per_node=2", vars).expect("a configuration");
        assert_eq!((config.rules.min, config.rules.max, config.round.sizes[0], config.node), (2, 4, 2, 1));
        assert_eq!((config.master_addr.as_str(), config.master_port), ("job-master-0", Some(23456)));
        assert_eq!(config.round.max_restarts, 1, "a flag goes before a variable");
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
            ("--recover live", "--max-restarts"),
        ] {
            let error = format!("{:#}", parsed(flags, "").expect_err(flags));
            assert!(error.contains(named), "`{flags}`: {error} should name {named}");
        }
        let error = parsed("", "PET_NNODES=x").expect_err("no number").to_string();
        assert!(error.contains("PET_NNODES=x"), "{error}");
    }
}
