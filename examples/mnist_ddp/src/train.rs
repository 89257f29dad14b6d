//! Command line and training.

use crate::{
    augment::Augment,
    batch::{ImageBatcher, ImageDataset, Sample, resident_bytes},
    data::{self, DataArgs, Dataset, Places},
    model::{Net, NetConfig, Network, sgd},
    predict::{self, PredictArgs},
};
use anyhow::{Result, bail};
use burn::tensor::Device;
use burn::train::metric::LossMetric;
use burn_ddp::{
    Context, Trainer, TrainerArgs,
    config::config_file::Preset,
    context::values::probability,
    metric::GlobalAccuracy,
    optim::SgdArgs,
    run::{Confusion, ExportArgs, misclassified::Misclassified},
    trainer::{Loaders, start},
};
use clap::{Parser, Subcommand, ValueEnum};
use serde::Serialize;
use std::{process::ExitCode, sync::Arc};

/// Train the MNIST network on one device, or with data parallelism on several
#[derive(Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    after_help = "These are the flags to begin with; --help lists all.",
    after_long_help = ""
)]
pub struct MnistArgs {
    #[command(flatten)]
    pub trainer: TrainerArgs,

    #[command(flatten)]
    pub data: DataArgs,
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

    #[command(flatten)]
    pub sgd: SgdArgs,
    /// Use Nesterov momentum
    #[arg(long, hide_short_help = true, help_heading = "Training")]
    pub nesterov: bool,

    /// Preset of flags; flags of --config and of the command line override it
    #[arg(long, value_enum, value_name = "NAME", help_heading = "Configuration")]
    pub recipe: Option<Recipe>,

    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Classify images of handwritten digits
    Predict(PredictArgs),
    /// Export weights for other programs
    #[command(subcommand)]
    Weights(WeightsCommand),
}

#[derive(Subcommand)]
pub enum WeightsCommand {
    /// Export weights as safetensors with PyTorch's key names and layouts
    Export(ExportArgs),
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
    fn check(&self) -> Result<()> {
        if self.nesterov && self.sgd.momentum == 0.0 {
            bail!("--nesterov needs a --momentum above 0");
        }
        Ok(())
    }

    /// The network of the flags.
    fn network(&self) -> NetConfig {
        NetConfig {
            network: self.network,
            batch_norm: self.batch_norm || self.trainer.sync_bn,
            dropout: self.dropout.map_or([0.25, 0.5], |p| [p, p]),
            label_smoothing: self.sgd.label_smoothing,
        }
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

/// Runs a command; without one starts the ranks, or trains if this process is a rank.
///
/// # Errors
/// If flags are invalid or training fails.
pub fn run(args: &MnistArgs) -> Result<ExitCode> {
    match &args.command {
        Some(Command::Predict(args)) => predict::run(args),
        Some(Command::Weights(WeightsCommand::Export(args))) => {
            args.run(|from| Net::open(from, &Device::flex()))
        }
        None => start(&args.trainer, || args.check(), |context| train(context, args)),
    }
}

/// Trains on one rank.
fn train(context: &Context, args: &MnistArgs) -> Result<()> {
    let data = load(context, args)?;
    let trainer = Trainer::new(context, &args.trainer)
        .dataset(data.name, &data.source)
        .resolved_flag("dataset", data.name)
        .must_match_unrecorded("--dataset", data.name)
        .data_digest("--data-dir or --eval-limit (digest of the images)", data.digest())
        .must_match_fields(&args.network())
        .must_match_fields(&args.sgd)
        .must_match("nesterov", args.nesterov)
        .must_match("augment", args.augment.to_string())
        .note("recipe", args.recipe)
        .flops_per_sample(args.network().flops())
        .data_parallel()
        .learner(|training| training.metrics((LossMetric::new(), GlobalAccuracy::default())));
    let loaders = loaders(context, &trainer, args, &data);
    let (images, world) = (data.test, context.world());
    let trainer = trainer
        .callback(|files| Confusion::new(files, data::CLASSES))
        .callback(move |files| Misclassified::new(images, world, files));
    let net = trainer.init(|device| args.network().init(device));
    trainer.fit(net, sgd(args.sgd.momentum, args.nesterov, args.sgd.weight_decay), loaders)?;
    Ok(())
}

/// Loads the data set. One rank per machine finds or downloads it first and reports errors.
fn load(context: &Context, args: &MnistArgs) -> Result<Dataset> {
    let (downloads, progress) = (context.environment().is_local_main(), context.is_main());
    let load = || data::load(&args.data, &Places::from_process(downloads, progress)?);
    let data = context.local_main_first(load)?;
    if let Some(notice) = &data.notice {
        context.console().warn(notice);
    }
    if args.data_on_device {
        let images = [&data.train, &data.test].map(|images| resident_bytes(images, context.device()));
        context.local_device().check_room("--data-on-device", images.iter().sum())?;
    }
    Ok(data)
}

/// This rank's share of the training, validation and test images.
fn loaders(context: &Context, trainer: &Trainer<'_, Net>, args: &MnistArgs, data: &Dataset) -> Loaders<Net> {
    type Samples = Arc<dyn burn::data::dataset::Dataset<Sample>>;
    let loader = |samples: Samples, augment: Augment, shuffle: Option<u64>| {
        let (batcher, seed) = (ImageBatcher::new(args.data_on_device), args.trainer.seed);
        let finisher = batcher.clone();
        let mut loader = trainer.sharded(samples, batcher, shuffle);
        if !augment.is_none() {
            loader = loader.transform(move |epoch, sample: Sample| sample.moved(augment, seed, epoch));
        }
        let finish = move |batch, device: &Device| finisher.finish(batch, device);
        Arc::new(loader.build_finished(context.world(), finish))
    };
    let evaluated = |samples| loader(samples, Augment::default(), None);
    let (train, valid) = trainer.split(ImageDataset(data.train.clone()));
    Loaders {
        train: loader(Arc::new(train), args.augment, trainer.shuffle_seed()),
        valid: valid.map(|valid| evaluated(Arc::new(valid)) as _),
        test: evaluated(Arc::new(ImageDataset(data.test.clone()))),
    }
}
