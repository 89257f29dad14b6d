//! Command line and training.

use crate::{
    data::{DataArgs, ImageBatch, ImageBatcher, Pictures},
    model::{ResNet, ResNetConfig},
    shapes::{self, ShapesArgs},
};
use anyhow::{Context as _, Result, bail};
use burn::module::ParamGroup;
use burn::tensor::Device;
use burn::train::metric::LossMetric;
use burn_ddp::optim::{Sgd, SgdArgs};
use burn_ddp::{
    Context, Trainer, TrainerArgs,
    context::values::rate,
    data::{Channels, Image, ImageFolder, class_weights},
    loader::ShardedLoader,
    metric::GlobalAccuracy,
    run::{Confusion, ExportArgs, TopK, recorded, weights},
    trainer::{Loaders, start},
};
use clap::{Parser, Subcommand};
use serde::Deserialize;
use std::{path::Path, process::ExitCode, sync::Arc};

/// Train a classifier of pictures in one folder per class
#[derive(Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    after_help = "These are the flags to begin with; --help lists all.",
    after_long_help = "",
    mut_arg("epochs", |arg| arg.default_value("5")),
    mut_arg("lr_schedule", |arg| arg.default_value("one-cycle")),
    mut_arg("lr", |arg| arg.default_value("0.1")),
    mut_arg("weight_decay", |arg| arg.default_value("0.0005")),
)]
pub struct ImageArgs {
    #[command(flatten)]
    pub trainer: TrainerArgs,

    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub network: ResNetConfig,
    /// Train the last layer only
    #[arg(long, conflicts_with = "body_lr", help_heading = "Model")]
    pub freeze_body: bool,
    /// Learning rate of all layers but the last one, relative to --lr
    #[arg(long, value_name = "FACTOR", value_parser = rate, help_heading = "Model")]
    pub body_lr: Option<f64>,
    #[command(flatten, next_help_heading = None)]
    pub sgd: SgdArgs,

    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Export weights for other programs
    Export(ExportArgs),
    /// Draw a small data set of shapes
    Shapes(ShapesArgs),
}

impl ImageArgs {
    /// Checks the flags before any rank is started.
    ///
    /// # Errors
    /// If flags exclude each other; as for [`DataArgs::pictures`].
    fn check(&self) -> Result<()> {
        let ResNetConfig { network, channels, blocks, .. } = self.network(0);
        if !network.is_small() && channels != 3 {
            bail!("--colours grey: torchvision's networks have three channels; use --colours rgb");
        }
        if !network.is_small() && blocks != 1 {
            bail!("--blocks {blocks}: only the small network has a choice of blocks");
        }
        if self.data.balance_classes && self.trainer.no_shuffle {
            bail!("--balance-classes draws pictures at random; remove --no-shuffle");
        }
        self.data.pictures().map(drop)
    }

    /// The network for a number of classes.
    fn network(&self, classes: usize) -> ResNetConfig {
        ResNetConfig { channels: self.data.format().channels, classes, ..self.network }
    }
}

/// Runs a command; without one starts the ranks, or trains if this process is a rank.
///
/// # Errors
/// If flags or the pictures are invalid, or training fails.
pub fn run(args: &ImageArgs) -> Result<ExitCode> {
    match &args.command {
        Some(Command::Export(args)) => args.run(open),
        Some(Command::Shapes(args)) => shapes::run(args),
        None => start(&args.trainer, || args.check(), |context| train(context, args)),
    }
}

/// Trains on one rank.
fn train(context: &Context, args: &ImageArgs) -> Result<()> {
    let mut trainer = Trainer::new(context, &args.trainer);
    let mut pictures =
        Pictures::load(context, &args.data, args.trainer.seed, |samples| trainer.split_indices(samples))?;
    let classes = pictures.train.classes().to_vec();
    check_classes(args, &classes)?;
    let count = classes.len();
    if !args.network.network.is_small() {
        // Those of ImageNet's pictures, with which torchvision's networks are trained.
        let (mean, std) = (vec![0.485, 0.456, 0.406], vec![0.229, 0.224, 0.225]);
        pictures.normalisation = Channels { mean, std };
        trainer = trainer.head("fc");
    }
    let trainer = fine_tuned(trainer, args)
        .dataset(
            &format!("{count} classes"),
            &args.data.data.as_deref().unwrap_or("".as_ref()).display().to_string(),
        )
        .data_digest("--data (digest of names and sizes)", pictures.digest.clone())
        .must_match_fields(&args.network(count))
        .must_match("side", args.data.side)
        .must_match("augment", args.data.augment)
        .must_match("balance-classes", args.data.balance_classes)
        .must_match_fields(&args.sgd)
        .note("class_names", classes)
        .note("normalisation", &pictures.normalisation)
        .data_parallel()
        .learner(|training| training.metrics((LossMetric::new(), GlobalAccuracy::default())))
        .callback(move |files| Confusion::new(files, count))
        .callback(|_| TopK::new(5));
    let loaders = loaders(context, &trainer, args, pictures);
    let SgdArgs { momentum, weight_decay, label_smoothing } = args.sgd;
    let mut net = trainer.init(|device| args.network(count).init(device));
    net.label_smoothing = label_smoothing;
    let sgd = Sgd { momentum, dampening: 0.0, nesterov: true, weight_decay };
    // Backward has twice the operations of forward, and a frozen body has none.
    let passes = if args.freeze_body { 1.0 } else { 3.0 };
    let trainer = trainer.flops_per_sample(passes * net.flops(args.data.side));
    let net = if args.freeze_body { net.with_frozen_body() } else { net };
    trainer.fit(net, sgd, loaders)?;
    Ok(())
}

// ANCHOR: fine_tuning
/// Records the flags of fine-tuning, and sets the learning rates of the groups.
fn fine_tuned<'a>(trainer: Trainer<'a, ResNet>, args: &ImageArgs) -> Trainer<'a, ResNet> {
    // Not recorded without a flag, so that such runs resume checkpoints of earlier versions.
    match args.body_lr {
        _ if args.freeze_body => trainer.must_match("freeze-body", true),
        Some(factor) => trainer
            .must_match("body-lr", factor)
            .lr_group(ParamGroup::all(), factor)
            .lr_group(ParamGroup::from_predicate("fc."), 1.0),
        None => trainer,
    }
}
// ANCHOR_END: fine_tuning

/// Rejects initial weights of as many other classes, whose last layer would be loaded without a warning.
fn check_classes(args: &ImageArgs, classes: &[String]) -> Result<()> {
    let Some(path) = args.trainer.init_from.as_ref().filter(|_| !args.trainer.no_strict) else {
        return Ok(());
    };
    match recorded::<Recorded>(path) {
        Ok(Recorded { class_names, .. }) if class_names != classes => bail!(
            "--init-from {}: it was trained on other classes ({}); --no-strict keeps what fits",
            path.display(),
            class_names.join(", ")
        ),
        // Weights from other programs have no classes.
        Ok(_) | Err(_) => Ok(()),
    }
}

// ANCHOR: loaders
/// This rank's share of the training, validation and test pictures.
fn loaders(
    context: &Context,
    trainer: &Trainer<'_, ResNet>,
    args: &ImageArgs,
    Pictures { train, valid, test, normalisation, .. }: Pictures,
) -> Loaders<ResNet> {
    let batcher = ImageBatcher { format: args.data.format(), normalisation };
    let evaluated = |pictures: ImageFolder| -> Arc<ShardedLoader<Image, ImageBatch>> {
        Arc::new(trainer.sharded(pictures, batcher.clone(), None).build(context.world()))
    };
    let valid = valid.map(|valid| evaluated(valid) as _);
    let weights = args.data.balance_classes.then(|| class_weights(train.labels()));
    let (seed, augment) = (args.trainer.seed, args.data.augment);
    let mut loader = trainer
        .sharded(train, batcher.clone(), trainer.shuffle_seed())
        .transform(move |epoch, image| augment.apply(image, seed, epoch));
    if let Some(weights) = weights {
        loader = loader.sample_weights(weights);
    }
    Loaders { train: Arc::new(loader.build(context.world())), valid, test: evaluated(test) }
}
// ANCHOR_END: loaders

/// What `config.json` says about the network.
#[derive(Deserialize)]
struct Recorded {
    #[serde(flatten)]
    network: ResNetConfig,
    class_names: Vec<String>,
}

/// Opens the network of a run, or of a checkpoint or weights file in its folder, on the CPU.
///
/// # Errors
/// If `path` is not in the folder of such a run, or the weights cannot be read.
fn open(path: &Path) -> Result<ResNet> {
    let Recorded { network, class_names } = recorded(path).with_context(|| path.display().to_string())?;
    weights::open(ResNetConfig { classes: class_names.len(), ..network }.init(&Device::flex()), path)
}
