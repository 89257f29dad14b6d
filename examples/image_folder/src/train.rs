//! Flags and training.

use crate::{
    data::{DataArgs, ImageBatch, ImageBatcher, Pictures},
    fine_tuning::{self, FineTuningArgs},
    model::{ResNet, ResNetConfig},
};
use anyhow::{Context as _, Result, bail};
use burn::tensor::Device;
use burn::train::metric::LossMetric;
use burn_ddp::optim::{Sgd, SgdArgs};
use burn_ddp::{
    Context, Trainer, TrainerArgs,
    data::{Image, ImageFolder, class_weights},
    loader::ShardedLoader,
    metric::GlobalAccuracy,
    run::{Confusion, TopK, recorded, weights},
    trainer::{Loaders, start},
};
use clap::Args;
use serde::Deserialize;
use std::{path::Path, process::ExitCode, sync::Arc};

/// Train a classifier of pictures in one folder per class
#[derive(Args, Clone, Debug)]
#[command(
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
    #[command(flatten)]
    pub fine_tuning: FineTuningArgs,
    #[command(flatten, next_help_heading = None)]
    pub sgd: SgdArgs,
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

/// Starts the ranks, or trains if this process is a rank.
///
/// # Errors
/// If flags or the pictures are invalid, or training fails.
pub fn run(args: &ImageArgs) -> Result<ExitCode> {
    start(&args.trainer, || args.check(), |context| train(context, args))
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
        pictures.normalisation = fine_tuning::normalisation();
        trainer = trainer.head("fc");
    }
    let trainer = args
        .fine_tuning
        .applied(trainer)
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
    trainer.fit(args.fine_tuning.frozen(net), sgd, loaders)?;
    Ok(())
}

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
pub fn open(path: &Path) -> Result<ResNet> {
    let Recorded { network, class_names } = recorded(path).with_context(|| path.display().to_string())?;
    weights::open(ResNetConfig { classes: class_names.len(), ..network }.init(&Device::flex()), path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_ddp::data::ImageFormat;
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
        assert_eq!(args.data.format(), ImageFormat { side: 32, channels: 1 });
    }
}
