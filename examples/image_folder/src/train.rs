//! Training from command-line flags.

use crate::{
    args::ImageArgs,
    batch::{ImageBatch, ImageBatcher},
    model::ResNet,
    run::recorded_classes,
};
use anyhow::{Result, bail};
use burn::data::dataset::Dataset;
use burn::train::metric::LossMetric;
use burn_ddp::{
    Context, Trainer,
    data::{Channels, Image, ImageFolder, ImageSplits, class_weights, survey},
    run::{confusion::Confusion, top_k::TopK},
    trainer::{Loaders, start},
};
use collective::{loader::ShardedLoader, metric::GlobalAccuracy, sampler::mix};
use kernels::layers::Sgd;
use std::{process::ExitCode, sync::Arc};

/// Starts the ranks, or trains if this process is a rank.
///
/// # Errors
/// If flags or the pictures are invalid, or training fails.
pub fn run(args: &ImageArgs) -> Result<ExitCode> {
    start(&args.trainer, || args.check(), |context| train(context, args))
}

/// The data sets, and how their pictures are normalised.
struct Pictures {
    train: ImageFolder,
    /// Pictures of `--valid-split`.
    valid: Option<ImageFolder>,
    test: ImageFolder,
    /// Mean and deviation of `train`.
    normalisation: Channels,
    digest: String,
}

/// Finds and splits the pictures, and decodes all of them once, a part on each rank.
fn load(context: &Context, trainer: &Trainer<'_, ResNet>, args: &ImageArgs) -> Result<Pictures> {
    let ImageSplits { train: all, evaluation } = args.pictures()?;
    let (kept, tested) = match evaluation {
        Some(_) => ((0..all.len()).collect(), Vec::new()),
        None => split(&all, args.test_split, args.trainer.seed),
    };
    let (trained, held_out) = trainer.split_indices(kept.len());
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
    Ok(Pictures { train, valid, test, normalisation, digest })
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

/// Trains on one rank.
fn train(context: &Context, args: &ImageArgs) -> Result<()> {
    let trainer = Trainer::new(context, &args.trainer);
    let pictures = load(context, &trainer, args)?;
    let classes = pictures.train.classes().to_vec();
    check_classes(args, &classes)?;
    let count = classes.len();
    let trainer = trainer
        .dataset(
            &format!("{count} classes"),
            &args.data.as_deref().unwrap_or("".as_ref()).display().to_string(),
        )
        .data_digest("--data (digest of names and sizes)", pictures.digest.clone())
        .setting("channels", args.format().channels)
        .setting("side", args.side)
        .setting("blocks", args.blocks)
        .setting("width", args.width)
        .setting("augment", args.augment)
        .setting("balance-classes", args.balance_classes)
        .setting("momentum", args.momentum)
        .setting("weight-decay", args.weight_decay)
        .setting("label-smoothing", args.label_smoothing)
        .recorded("class_names", classes)
        .recorded("normalisation", &pictures.normalisation)
        .data_parallel()
        .learner(|training| training.metrics((LossMetric::new(), GlobalAccuracy::default())))
        .callback(move |files| {
            Confusion::new(files.map(|files| files.folder.join("confusion_matrix.csv")), count)
        })
        .callback(|_| TopK::new(5));
    let loaders = loaders(context, &trainer, args, pictures);
    let net =
        trainer.init(|device| args.network(count).init(device)).with_label_smoothing(args.label_smoothing);
    let sgd = Sgd { momentum: args.momentum, nesterov: true, weight_decay: args.weight_decay };
    trainer.fit(net, sgd, loaders)
}

/// Rejects initial weights of as many other classes, whose last layer would be loaded without a warning.
fn check_classes(args: &ImageArgs, classes: &[String]) -> Result<()> {
    let Some(path) = args.trainer.init_from.as_ref().filter(|_| !args.trainer.no_strict) else {
        return Ok(());
    };
    match recorded_classes(path) {
        Some(before) if before != classes => bail!(
            "--init-from {}: it was trained on other classes ({}); --no-strict keeps what fits",
            path.display(),
            before.join(", ")
        ),
        // Weights from other programs have no classes.
        Some(_) | None => Ok(()),
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
    let batcher = ImageBatcher { format: args.format(), normalisation };
    let evaluated = |pictures: ImageFolder| -> Arc<ShardedLoader<Image, ImageBatch>> {
        Arc::new(trainer.sharded(pictures, batcher.clone(), None).build(context.world()))
    };
    let valid = valid.map(|valid| evaluated(valid) as _);
    let weights = args.balance_classes.then(|| class_weights(train.labels()));
    let (seed, augment) = (args.trainer.seed, args.augment);
    let mut loader = trainer
        .sharded(train, batcher.clone(), trainer.shuffle_seed())
        .transform(move |epoch, image| augment.apply(image, seed, epoch));
    if let Some(weights) = weights {
        loader = loader.sample_weights(weights);
    }
    Loaders::new(Arc::new(loader.build(context.world())), evaluated(test)).with_validation(valid)
}
// ANCHOR_END: loaders
