//! The flags of the MNIST example, and `--recipe`, which presets them.

use crate::{augment::Augment, data::DatasetKind, model::Network};
use anyhow::{Result, bail};
use burn_ddp::{
    TrainerArgs,
    config::config_file::Preset,
    context::values::{positive, probability, rate},
};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;

/// Train the MNIST network on one device, or with data parallelism on several.
#[derive(Args, Clone, Debug)]
pub struct MnistArgs {
    #[command(flatten)]
    pub trainer: TrainerArgs,

    /// Dataset; auto is MNIST if it is found or can be downloaded, else a subset of it
    #[arg(long, value_enum, default_value = "auto", hide_short_help = true, help_heading = "Data")]
    pub dataset: DatasetKind,
    /// Folder with the four MNIST files, gzipped or not
    #[arg(long, value_name = "DIR", help_heading = "Data")]
    pub data_dir: Option<PathBuf>,
    /// Limit on training images: the first N
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true, help_heading = "Data")]
    pub train_limit: Option<usize>,
    /// Limit on test images: the first N
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true, help_heading = "Data")]
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
    #[arg(long, value_name = "P", value_parser = probability, hide_short_help = true, help_heading = "Model")]
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
    #[arg(long, default_value_t = 0.0, value_name = "DECAY", value_parser = rate, hide_short_help = true)]
    pub weight_decay: f64,
    /// Label smoothing of the training loss
    #[arg(long, default_value_t = 0.0, value_name = "PART", value_parser = probability, hide_short_help = true)]
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

/// A preset of flags for an accuracy on MNIST, which `scripts/choose-recipe` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Recipe {
    /// 99 % test accuracy in 1.2 epochs with two ranks
    Fast,
    /// 99 % test accuracy in one epoch with two ranks, with a smaller network
    Lenet,
    /// 99.55 % test accuracy in 30 epochs with two ranks
    Best,
}

impl Recipe {
    /// The flags as on the command line, which a configuration file and the command line override.
    pub fn flags(self) -> impl Iterator<Item = &'static str> {
        let common = "--batch-size=32 --lr-schedule=one-cycle:0.2 --momentum=0.9 --nesterov --weight-decay=0.0005 \
                      --label-smoothing=0.05";
        let own = match self {
            Recipe::Fast => "--epochs=1.2 --lr=0.03 --dropout=0",
            Recipe::Lenet => "--network=lenet --epochs=1 --lr=0.05 --dropout=0",
            Recipe::Best => {
                "--epochs=30 --lr=0.05 --batch-norm --dropout=0.2 --augment=shift:2,rotate:10,zoom:10"
            }
        };
        common.split_whitespace().chain(own.split_whitespace())
    }
}
