//! The data sets: pictures for training, validation and test, and their batches.

use anyhow::{Context as _, Result, bail};
use burn::data::{dataloader::batcher::Batcher, dataset::Dataset};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_ddp::sampler::mix;
use burn_ddp::{
    Context,
    context::values::{probability, whole},
    data::{Channels, Image, ImageAugment, ImageFolder, ImageFormat, ImageSplits, OnCorrupt, survey},
};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Flags of the pictures.
#[derive(Args, Clone, Debug)]
#[command(about = None, long_about = None, next_help_heading = "Data")]
pub struct DataArgs {
    /// Folder with a folder of pictures per class, or with folders train and val of such folders
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Fraction of the pictures for the test, if there is no folder val
    #[arg(
        long, default_value_t = 0.2, value_name = "FRACTION", value_parser = probability, hide_short_help = true
    )]
    pub test_split: f64,
    /// Side in pixels to which pictures are scaled and cropped
    #[arg(long, default_value_t = 32, value_name = "PIXELS", value_parser = whole(1..=4096))]
    pub side: usize,
    /// Colours of the network's input
    #[arg(long, value_enum, default_value_t = Colours::Rgb)]
    pub colours: Colours,
    /// Random changes of training pictures: none, or some of crop:PIXELS and flip
    #[arg(long, default_value = "crop:2,flip", value_name = "CHANGES", hide_short_help = true)]
    pub augment: ImageAugment,
    /// What happens with pictures that cannot be read
    #[arg(long, value_enum, default_value_t = OnCorrupt::Fail, hide_short_help = true)]
    pub on_corrupt: OnCorrupt,
    /// Draw every class equally often, with replacement
    #[arg(long, hide_short_help = true)]
    pub balance_classes: bool,
}

/// Colours of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Colours {
    Grey,
    Rgb,
}

impl DataArgs {
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
}

/// Normalised pictures `[batch, channels, side, side]` and classes `[batch]`.
pub type ImageBatch = (Tensor<4>, Tensor<1, Int>);

/// Normalises pictures and copies them to a device.
#[derive(Clone, Debug)]
pub struct ImageBatcher {
    pub format: ImageFormat,
    pub normalisation: Channels,
}

impl Batcher<Image, ImageBatch> for ImageBatcher {
    fn batch(&self, images: Vec<Image>, device: &Device) -> ImageBatch {
        let ImageFormat { side, channels } = self.format;
        let values = self.normalisation.normalise(&images);
        let labels: Vec<i32> = images.iter().map(|image| image.label as i32).collect();
        let size = images.len();
        (
            Tensor::from_data(TensorData::new(values, [size, channels, side, side]), device),
            Tensor::from_data(TensorData::new(labels, [size]), device),
        )
    }
}

/// The data sets, and how their pictures are normalised.
pub struct Pictures {
    pub train: ImageFolder,
    /// Pictures of `--valid-split`.
    pub valid: Option<ImageFolder>,
    pub test: ImageFolder,
    /// Mean and deviation of `train`.
    pub normalisation: Channels,
    pub digest: String,
}

impl Pictures {
    /// Finds and splits the pictures, and decodes all of them once, a part on each rank.
    ///
    /// `split_indices` divides a number of pictures into those to train on and those of `--valid-split`.
    ///
    /// # Errors
    /// If pictures are missing or cannot be read.
    pub fn load(
        context: &Context,
        args: &DataArgs,
        seed: u64,
        split_indices: impl Fn(usize) -> (Vec<usize>, Vec<usize>),
    ) -> Result<Self> {
        let ImageSplits { train: all, evaluation } = args.pictures()?;
        let (kept, tested) = match evaluation {
            Some(_) => ((0..all.len()).collect(), Vec::new()),
            None => split(&all, args.test_split, seed),
        };
        let (trained, held_out) = split_indices(kept.len());
        let [trained, held_out] =
            [trained, held_out].map(|part| part.iter().map(|at| kept[*at]).collect::<Vec<_>>());

        let survey = |data: &ImageFolder, counted: &[usize]| {
            survey(data, counted, context.group(), args.on_corrupt, |text| context.console().warn(text))
        };
        let (corrupt, normalisation) = survey(&all, &trained)?;
        let without = |parts: &[&Vec<usize>]| {
            let mut left_out = parts.iter().copied().chain([&corrupt]).flatten().copied().collect::<Vec<_>>();
            left_out.sort_unstable();
            all.without(&left_out)
        };
        let test = match evaluation {
            Some(data) => data.without(&survey(&data, &[])?.0),
            None => without(&[&kept]),
        };
        let train = without(&[&tested, &held_out]);
        if test.is_empty() || train.is_empty() {
            bail!("--test-split {}: no pictures are left for the training or the test", args.test_split);
        }
        let digest = format!("{} {}", without(&[&tested]).digest()?, test.digest()?);
        let valid = (!held_out.is_empty()).then(|| without(&[&tested, &trained]));
        Ok(Self { train, valid, test, normalisation, digest })
    }
}

/// Pictures to train on and for the test, both in ascending order.
///
/// Each class has the same fraction of test pictures, and at least one picture in each part if it has two.
fn split(data: &ImageFolder, fraction: f64, seed: u64) -> (Vec<usize>, Vec<usize>) {
    let mut classes = vec![Vec::new(); data.classes().len()];
    data.labels().enumerate().for_each(|(index, label)| classes[label].push(index));
    let (mut train, mut test) = (Vec::new(), Vec::new());
    for mut indices in classes {
        indices.sort_by_key(|index| mix(seed, *index as u64));
        let count = (indices.len() as f64 * fraction).round() as usize;
        let held_out = indices.split_off(indices.len() - count.max(1).min(indices.len().saturating_sub(1)));
        train.extend(indices);
        test.extend(held_out);
    }
    train.sort_unstable();
    test.sort_unstable();
    (train, test)
}
