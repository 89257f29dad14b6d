//! The flags of a training run, as typed. What they mean on this machine is decided in
//! [`config`](crate::config).

mod values;

pub use values::{DeviceArg, DpReduceArg, ModeArg, NprocArg, ProgressArg, ScaleArg, bounded, positive};
pub(crate) use values::{probability, rate};

use crate::{
    checkpoint::CheckpointArgs,
    config_file::{Given, switchable},
    data::DatasetKind,
    gradients::GradientArgs,
    optimisation::{Epochs, OptimisationArgs},
    recipe::Recipe,
    replicas::DeviceId,
    world::WorldArgs,
};
use clap::{ArgAction, Parser, value_parser};
use collective::Transport;
use std::path::PathBuf;
pub(crate) use values::seconds;

/// Train the MNIST network on one device, or with distributed data parallelism on many.
#[derive(Parser, Clone, Debug)]
#[command(version, next_line_help = false, args_override_self = true, mut_args = switchable)]
pub struct Args {
    // First, while nothing has been taken out of what was parsed.
    #[command(flatten)]
    pub given: Given,

    /// How to use the devices; auto: ddp where there is more than one, or no GPU
    #[arg(long, value_enum, default_value_t = ModeArg::Auto, help_heading = "World")]
    pub mode: ModeArg,
    /// auto, cpu, or cuda, rocm, metal, vulkan or wgpu, if built in, with or without :N; in ddp mode, cuda
    /// means cuda:LOCAL_RANK. `burn-ddp devices` lists what there is
    #[arg(long, default_value = "auto", value_name = "DEVICE", help_heading = "World")]
    pub device: DeviceArg,
    /// Processes to start on this machine; auto: one per GPU, or 2 on the CPU
    #[arg(long, default_value = "auto", value_name = "N|auto", help_heading = "World")]
    pub nproc_per_node: NprocArg,
    /// Let ranks share GPUs when there are more ranks than GPUs: slow, and without NCCL
    #[arg(long, help_heading = "World")]
    pub allow_shared_gpu: bool,
    /// dp mode: the devices, the first of which holds the module: N or cuda:N, or cpu:N for replicas that
    /// share the CPU [default: all GPUs, or cpu:0,cpu:1]
    #[arg(long, value_name = "ID,…", value_delimiter = ',', action = ArgAction::Set, help_heading = "World")]
    pub device_ids: Vec<DeviceId>,
    /// dp mode: where outputs are gathered and the loss is computed [default: the first of --device-ids]
    #[arg(long, value_name = "ID", help_heading = "World")]
    pub output_device: Option<DeviceId>,
    /// dp mode: how gradients come together on the main device [default: all-reduce on CUDA, else main]
    #[arg(long, value_enum, help_heading = "World")]
    pub dp_reduce: Option<DpReduceArg>,
    /// Threads a rank or replica computes with [default: cores / ranks or replicas on this machine]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..), help_heading = "World")]
    pub threads: Option<u16>,
    /// How ranks exchange data: auto, nccl (between NVIDIA GPUs), shm (one machine), tcp or mpi (a build
    /// with the feature `mpi`, under mpirun)
    #[arg(long, default_value = "auto", value_name = "TRANSPORT", help_heading = "World")]
    pub transport: Transport,
    /// Seconds any collective call may wait for other ranks
    #[arg(long, default_value_t = 300.0, value_name = "SECONDS", value_parser = seconds, help_heading = "World")]
    pub timeout: f64,
    #[command(flatten)]
    pub world: WorldArgs,

    /// auto: MNIST if it is found or can be downloaded, otherwise generated digits
    #[arg(long, value_enum, default_value_t = DatasetKind::Auto, help_heading = "Data")]
    pub dataset: DatasetKind,
    /// Folder with the four MNIST files, gzipped or not
    #[arg(long, value_name = "DIR", help_heading = "Data")]
    pub data_dir: Option<PathBuf>,
    /// Train on the first N images only
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Data")]
    pub train_limit: Option<usize>,
    /// Evaluate on the first N test images only
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Data")]
    pub eval_limit: Option<usize>,
    /// Keep file order instead of shuffling each epoch
    #[arg(long, help_heading = "Data")]
    pub no_shuffle: bool,
    /// Threads that build batches ahead; 0 builds them between steps
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = "Data")]
    pub workers: usize,

    /// BatchNorm after each convolution
    #[arg(long, help_heading = "Model")]
    pub batch_norm: bool,
    /// BatchNorm with the statistics of all ranks' batches together; implies --batch-norm
    #[arg(long, help_heading = "Model")]
    pub sync_bn: bool,
    /// Probability of both dropouts; 0 turns them off [default: 0.25 and 0.5]
    #[arg(long, value_name = "P", value_parser = probability, help_heading = "Model")]
    pub dropout: Option<f64>,
    /// Initial weights: another run or its .bpk, or .pt, .pth or .safetensors with PyTorch's key names
    #[arg(long, visible_alias = "weights", value_name = "FILE", help_heading = "Model")]
    pub init_from: Option<PathBuf>,
    /// Take from --init-from what fits, and say what does not
    #[arg(long, requires = "init_from", help_heading = "Model")]
    pub no_strict: bool,

    /// Times to train on all images; 0.5 is half of them
    #[arg(long, default_value = "1", value_name = "N", help_heading = "Training")]
    pub epochs: Epochs,
    /// Samples a rank and step; in dp mode, samples a step, dealt out to the devices
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = positive, help_heading = "Training")]
    pub batch_size: usize,
    /// Learning rate of one rank
    #[arg(long, default_value_t = 0.05, value_name = "RATE", value_parser = rate, help_heading = "Training")]
    pub lr: f64,
    /// How the learning rate grows with the world size
    #[arg(long, value_enum, default_value_t = ScaleArg::Linear, help_heading = "Training")]
    pub scale_lr: ScaleArg,
    /// Epochs of learning-rate warm-up; --warmup-start-factor says from which rate
    #[arg(long, default_value_t = 0.0, value_name = "EPOCHS", value_parser = rate, help_heading = "Training")]
    pub warmup_epochs: f64,
    /// SGD momentum, without dampening
    #[arg(long, default_value_t = 0.9, value_name = "M", value_parser = probability, help_heading = "Training")]
    pub momentum: f64,
    /// Decides weights, data order, dropout and augmentation
    #[arg(long, default_value_t = 42, value_name = "SEED", help_heading = "Training")]
    pub seed: u64,
    /// Stop after N optimizer steps, and evaluate
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Training")]
    pub max_steps: Option<usize>,

    #[command(flatten)]
    pub optimisation: OptimisationArgs,

    #[command(flatten)]
    pub gradients: GradientArgs,

    #[command(flatten)]
    pub checkpoints: CheckpointArgs,

    /// Where the run leaves its files [default: runs/DATE-TIME]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub run_dir: Option<PathBuf>,
    /// Histograms of the parameters and their averaged gradients for TensorBoard, in step 1 and each N-th
    #[arg(
        long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "100",
        value_parser = positive, help_heading = "Output"
    )]
    pub histograms: Option<usize>,
    /// auto: a bar on a terminal, plain lines elsewhere; tui: burn-train's dashboard
    #[arg(long, value_enum, default_value_t = ProgressArg::Auto, help_heading = "Output")]
    pub progress: ProgressArg,
    /// Flags that reach an accuracy on MNIST; those of --config and of the command line win
    #[arg(long, value_enum, value_name = "NAME", help_heading = "Configuration")]
    pub recipe: Option<Recipe>,
    /// Flags from a file, TOML or a run's config.json, or from a run; those of the command line win
    #[arg(long, value_name = "FILE|RUN", help_heading = "Configuration")]
    pub config: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for bad in [
            ["--dropout", "1"],
            ["--momentum", "-0.1"],
            ["--lr", "NaN"],
            ["--batch-size", "0"],
            ["--nproc-per-node", "0"],
            ["--timeout", "0"],
            ["--accumulate", "0"],
            ["--gradient-clip", "0"],
            ["--bucket-cap-mb", "-1"],
            ["--grad-compression", "topk:2"],
        ] {
            let args = [&["mnist"][..], &bad].concat();
            assert!(Args::try_parse_from(args).is_err(), "{bad:?}");
        }
    }
}
