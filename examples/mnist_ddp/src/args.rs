//! The flags of the MNIST example.

use crate::{augment::Augment, data::DatasetKind, model::Network, recipe::Recipe};
use anyhow::{Result, bail};
use burn_ddp::{
    TrainerArgs,
    config::config_file::Preset,
    context::values::{positive, probability, rate},
};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Train the MNIST network on one device, or with data parallelism on several.
#[derive(Args, Clone, Debug)]
pub struct MnistArgs {
    #[command(flatten)]
    pub trainer: TrainerArgs,

    /// Dataset; auto is MNIST if it is found or can be downloaded, else a subset of it
    #[arg(
        long, value_enum, default_value_t = DatasetKind::Auto, hide_short_help = true, help_heading = "Data"
    )]
    pub dataset: DatasetKind,
    /// Folder with the four MNIST files, gzipped or not
    #[arg(long, value_name = "DIR", help_heading = "Data")]
    pub data_dir: Option<PathBuf>,
    /// Limit on training images: the first N
    #[arg(
        long, value_name = "N", value_parser = positive, hide_short_help = true, help_heading = "Data"
    )]
    pub train_limit: Option<usize>,
    /// Limit on test images: the first N
    #[arg(
        long, value_name = "N", value_parser = positive, hide_short_help = true, help_heading = "Data"
    )]
    pub eval_limit: Option<usize>,
    /// Keep all images in device memory and gather batches there
    #[arg(long, hide_short_help = true, help_heading = "Data")]
    pub data_on_device: bool,
    /// Data augmentation: none, or shift:PIXELS,rotate:DEGREES,zoom:PERCENT,elastic:PIXELS
    #[arg(long, default_value = "none", value_name = "TRANSFORMS", hide_short_help = true)]
    pub augment: Augment,

    /// Network to train
    #[arg(long, value_enum, default_value_t, hide_short_help = true, help_heading = "Model")]
    pub network: Network,
    /// Add BatchNorm after each convolution
    #[arg(long, hide_short_help = true, help_heading = "Model")]
    pub batch_norm: bool,
    /// Dropout probability of both layers; 0 disables them [default: 0.25 and 0.5]
    #[arg(
        long, value_name = "P", value_parser = probability, hide_short_help = true, help_heading = "Model"
    )]
    pub dropout: Option<f64>,

    /// SGD momentum, without dampening
    #[arg(
        long, default_value_t = 0.9, value_name = "M", value_parser = probability, hide_short_help = true,
        help_heading = "Training"
    )]
    pub momentum: f64,
    /// Use Nesterov momentum
    #[arg(long, hide_short_help = true)]
    pub nesterov: bool,
    /// Weight decay (L2) of all parameters
    #[arg(
        long, default_value_t = 0.0, value_name = "DECAY", value_parser = rate,
        hide_short_help = true
    )]
    pub weight_decay: f64,
    /// Label smoothing of the training loss
    #[arg(
        long, default_value_t = 0.0, value_name = "PART", value_parser = probability,
        hide_short_help = true
    )]
    pub label_smoothing: f64,

    /// Preset of flags; flags of --config and of the command line override it
    #[arg(long, value_enum, value_name = "NAME", help_heading = "Configuration")]
    pub recipe: Option<Recipe>,
}

impl MnistArgs {
    /// The flag `--recipe`, for the command-line parser.
    pub const RECIPE: Preset = Preset {
        flag: "--recipe",
        flags: |name| Some(Recipe::from_str(name, false).ok()?.flags().map(String::from).collect()),
    };

    /// Checks the flags before any rank is started.
    ///
    /// # Errors
    /// If a flag would have no effect.
    pub fn check(&self) -> Result<()> {
        if self.nesterov && self.momentum == 0.0 {
            bail!("--nesterov needs a --momentum above 0");
        }
        Ok(())
    }

    /// Whether the network has BatchNorm.
    pub fn has_batch_norm(&self) -> bool {
        self.batch_norm || self.trainer.sync_bn
    }

    /// Probabilities of the two dropout layers.
    pub fn dropouts(&self) -> [f64; 2] {
        self.dropout.map_or([0.25, 0.5], |p| [p, p])
    }
}
