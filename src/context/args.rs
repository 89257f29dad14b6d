//! Flags for devices and processes: part of [`TrainerArgs`](crate::TrainerArgs), and usable alone.

use super::{
    short_help::shown_in_short_help,
    values::{DpReduceArg, ModeArg, seconds},
    world_args::WorldArgs,
};
use crate::{
    device::{DeviceArg, LocalDevice},
    launch::nproc::Nproc,
};
use anyhow::Result;
use clap::{ArgAction, Args, Parser, value_parser};
use collective::Transport;
use std::path::PathBuf;

/// Mode, device and process flags. The default corresponds to an empty command line.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "World", about = None, long_about = None, mut_args(shown_in_short_help))]
pub struct ContextArgs {
    /// Parallelism over devices
    ///
    /// auto is ddp where there are several GPUs or none, and single where there is one.
    #[arg(long, value_enum, default_value_t = ModeArg::Auto)]
    pub mode: ModeArg,
    /// Device: auto, cpu, cuda, rocm, metal, vulkan or wgpu; cuda:N for GPU N
    ///
    /// In ddp mode, cuda is cuda:LOCAL_RANK. `burn-ddp devices` lists the devices of this machine and the
    /// backends of this build.
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub device: DeviceArg,
    /// Ranks on this machine: a number, gpu (one per GPU), cpu (one per core) or auto
    ///
    /// auto is one per GPU, or 2 on a machine without GPU or with --device cpu.
    #[arg(long, default_value = "auto", value_name = "N|auto|gpu|cpu")]
    pub nproc_per_node: Nproc,
    /// Allow several ranks per GPU: slow, and without NCCL
    #[arg(long)]
    pub allow_shared_gpu: bool,
    /// dp mode: devices, main device first [default: all GPUs, or cpu:0,cpu:1]
    ///
    /// N or cuda:N is GPU N; cpu:N is a replica on the CPU.
    #[arg(long, value_name = "ID,…", value_delimiter = ',', action = ArgAction::Set)]
    pub device_ids: Vec<LocalDevice>,
    /// dp mode: device on which outputs are gathered [default: the first of --device-ids]
    #[arg(long, value_name = "ID")]
    pub output_device: Option<LocalDevice>,
    /// dp mode: gradient reduction [default: all-reduce on CUDA, else main]
    #[arg(long, value_enum)]
    pub dp_reduce: Option<DpReduceArg>,
    /// Compute threads per rank or replica [default: cores / local ranks or replicas]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Transport between ranks: auto, nccl, shm (one machine), tcp or mpi
    ///
    /// nccl needs an NVIDIA GPU per rank and is then used by a single rank, too; mpi needs a build with the feature `mpi` and mpirun.
    #[arg(long, default_value = "auto", value_name = "TRANSPORT")]
    pub transport: Transport,
    /// Time limit of a collective in seconds
    #[arg(long, default_value_t = 300.0, value_name = "SECONDS", value_parser = seconds)]
    pub timeout: f64,
    /// File for a trace of all ranks, which Perfetto and chrome://tracing show
    ///
    /// It contains steps, waits, collectives and the work of data loaders: at most 50000 spans per rank.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    // Flags after this struct are the program's own, without a heading.
    #[command(flatten, next_help_heading = None)]
    pub world: WorldArgs,
}

impl ContextArgs {
    /// Arguments of a command that starts `ranks` ranks on this machine, unless a launcher has started them.
    ///
    /// # Errors
    /// Those of [`WorldArgs::environment`].
    pub(crate) fn for_command(ranks: usize, world: &WorldArgs) -> Result<Self> {
        let launched = world.environment()?.is_some();
        let nproc_per_node = if launched { Nproc::Auto } else { Nproc::Count(ranks) };
        Ok(Self { nproc_per_node, world: world.clone(), ..Self::default() })
    }
}

impl Default for ContextArgs {
    fn default() -> Self {
        Alone::parse_from(["program"]).context
    }
}

/// The flags without those of a program.
#[derive(Parser)]
struct Alone {
    #[command(flatten)]
    context: ContextArgs,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Parses flags separated by spaces.
    pub fn parse(line: &str) -> Result<ContextArgs, clap::Error> {
        let flags = ["program"].into_iter().chain(line.split_whitespace());
        Alone::try_parse_from(flags).map(|flags| flags.context)
    }

    #[test]
    fn bad_values_and_contradictions_name_the_flag() {
        for (flags, named) in [
            ("--nproc-per-node 0", "--nproc-per-node"),
            ("--timeout 0", "--timeout"),
            ("--threads 0", "--threads"),
            ("--rank 1", "--world-size"),
            ("--world-size 2", "--rank"),
            ("--rank 0 --world-size 0", "--world-size"),
            ("--init-method tcp://nowhere", "the port is missing"),
            ("--rendezvous-timeout 0", "--rendezvous-timeout"),
        ] {
            let error = parse(flags).map(drop).expect_err(flags).to_string();
            assert!(error.contains(named), "`{flags}`: {error} should contain {named}");
        }
    }
}
