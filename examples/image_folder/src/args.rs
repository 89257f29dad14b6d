//! The flags of the picture example.

use crate::model::ResNetConfig;
use anyhow::{Context, Result, bail};
use burn_ddp::{
    TrainerArgs,
    context::values::{probability, rate, up_to},
    data::{ImageAugment, ImageFormat, ImageSplits, OnCorrupt},
};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Train a classifier of pictures in one folder per class
#[derive(Args, Clone, Debug)]
#[command(
    mut_arg("epochs", |arg| arg.default_value("5")),
    mut_arg("lr_schedule", |arg| arg.default_value("one-cycle")),
    mut_arg("lr", |arg| arg.default_value("0.1")),
)]
pub struct ImageArgs {
    #[command(flatten)]
    pub trainer: TrainerArgs,

    /// Folder with a folder of pictures per class, or with folders train and val of such folders
    #[arg(long, value_name = "DIR", help_heading = "Data")]
    pub data: Option<PathBuf>,
    /// Fraction of the pictures for the test, if there is no folder val
    #[arg(
        long, default_value_t = 0.2, value_name = "FRACTION", value_parser = probability, hide_short_help = true,
        help_heading = "Data"
    )]
    pub test_split: f64,
    /// Side in pixels to which pictures are scaled and cropped
    #[arg(long, default_value_t = 32, value_name = "PIXELS", value_parser = up_to(4096), help_heading = "Data")]
    pub side: usize,
    /// Colours of the network's input
    #[arg(long, value_enum, default_value_t = Colours::Rgb, help_heading = "Data")]
    pub colours: Colours,
    /// Random changes of training pictures: none, or some of crop:PIXELS and flip
    #[arg(
        long,
        default_value = "crop:2,flip",
        value_name = "CHANGES",
        hide_short_help = true,
        help_heading = "Data"
    )]
    pub augment: ImageAugment,
    /// What happens with pictures that cannot be read
    #[arg(long, value_enum, default_value_t = OnCorrupt::Fail, hide_short_help = true, help_heading = "Data")]
    pub on_corrupt: OnCorrupt,
    /// Draw every class equally often, with replacement
    #[arg(long, hide_short_help = true, help_heading = "Data")]
    pub balance_classes: bool,

    /// Residual blocks in each of the three stages; 3 is ResNet-20
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = up_to(1000), help_heading = "Model")]
    pub blocks: usize,
    /// Channels of the first stage; the others have twice and four times as many
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = up_to(8192), help_heading = "Model")]
    pub width: usize,

    /// SGD momentum, without dampening
    #[arg(
        long, default_value_t = 0.9, value_name = "M", value_parser = probability, hide_short_help = true,
        help_heading = "Training"
    )]
    pub momentum: f64,
    /// Weight decay (L2) of all parameters
    #[arg(
        long, default_value_t = 0.0005, value_name = "DECAY", value_parser = rate, hide_short_help = true,
        help_heading = "Training"
    )]
    pub weight_decay: f64,
    /// Label smoothing of the training loss
    #[arg(
        long, default_value_t = 0.0, value_name = "PART", value_parser = probability, hide_short_help = true,
        help_heading = "Training"
    )]
    pub label_smoothing: f64,
}

/// Colours of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Colours {
    Grey,
    Rgb,
}

impl ImageArgs {
    /// Checks the flags before any rank is started.
    ///
    /// # Errors
    /// If flags exclude each other; as for [`pictures`](Self::pictures).
    pub fn check(&self) -> Result<()> {
        if self.balance_classes && self.trainer.no_shuffle {
            bail!("--balance-classes draws pictures at random; remove --no-shuffle");
        }
        self.pictures().map(drop)
    }

    /// Finds the pictures without reading them.
    ///
    /// # Errors
    /// If `--data` is missing or is not a folder of classes.
    pub fn pictures(&self) -> Result<ImageSplits> {
        let Some(folder) = &self.data else {
            bail!(
                "--data DIR is missing: a folder of pictures per class; `image_folder shapes DIR` draws a small one"
            )
        };
        ImageSplits::open(folder, self.format()).context("--data")
    }

    /// Size and colours of the pictures.
    pub fn format(&self) -> ImageFormat {
        let channels = match self.colours {
            Colours::Grey => 1,
            Colours::Rgb => 3,
        };
        ImageFormat { side: self.side, channels }
    }

    /// The network for a number of classes.
    pub fn network(&self, classes: usize) -> ResNetConfig {
        ResNetConfig { channels: self.format().channels, classes, blocks: self.blocks, width: self.width }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        image: ImageArgs,
    }

    #[test]
    fn the_defaults_are_valid_and_data_is_required() {
        Flags::command().debug_assert();
        let image = |line: &str| Flags::parse_from(line.split(' ')).image;
        assert!(image("program").check().is_err());
        let ordered =
            image("program --data x --balance-classes --no-shuffle").check().expect_err("contradiction");
        assert!(ordered.to_string().contains("--no-shuffle"), "{ordered}");
        let args = image("program --data x --colours grey --epochs 2");
        assert!(args.check().is_err() && args.trainer.check().is_ok());
        assert_eq!(args.format(), ImageFormat { side: 32, channels: 1 });
    }
}
