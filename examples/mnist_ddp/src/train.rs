//! Training of the MNIST network from command-line flags.

use crate::{
    args::MnistArgs,
    batch::{DeviceBatcher, HostBatcher, ImageDataset, Sample, resident_bytes},
    data::{self, Dataset, Images},
    model::{Net, NetConfig, sgd},
};
use anyhow::{Result, bail};
use burn::tensor::Device;
use burn::train::metric::LossMetric;
use burn_ddp::{
    Context, Trainer,
    device::{MIN_FREE_MEMORY, gigabytes},
    run::{confusion::Confusion, misclassified::Misclassified},
    trainer::{Loaders, start},
};
use collective::{
    loader::{FinishedLoader, ShardedLoaderBuilder},
    metric::GlobalAccuracy,
};
use std::{process::ExitCode, sync::Arc};

/// Starts the ranks, or trains if this process is a rank.
///
/// # Errors
/// If flags are invalid or training fails.
pub fn run(args: &MnistArgs) -> Result<ExitCode> {
    start(&args.trainer, || args.check(), |context| train(context, args))
}

/// Trains on one rank.
fn train(context: &Context, args: &MnistArgs) -> Result<()> {
    let data = load(context, args)?;
    let trainer = Trainer::new(context, &args.trainer)
        .dataset(data.name, &data.source)
        .resolved_flag("dataset", data.name)
        .must_match_unrecorded("--dataset", data.name)
        .data_digest("--data-dir (digest of the images)", data.digest())
        .must_match("network", args.network)
        .must_match("batch-norm", args.has_batch_norm())
        .must_match("dropout", args.dropouts())
        .must_match("momentum", args.momentum)
        .must_match("nesterov", args.nesterov)
        .must_match("weight-decay", args.weight_decay)
        .must_match("label-smoothing", args.label_smoothing)
        .must_match("augment", args.augment)
        .note("recipe", args.recipe)
        .data_parallel()
        .learner(|training| training.metrics((LossMetric::new(), GlobalAccuracy::default())));
    let loaders = loaders(context, &trainer, args, &data);
    let (images, world) = (data.test, context.world());
    let trainer = trainer
        .callback(|files| Confusion::new(files, data::CLASSES))
        .callback(move |files| Misclassified::new(images, world, files));
    let config =
        NetConfig { network: args.network, batch_norm: args.has_batch_norm(), dropout: args.dropouts() };
    let net = trainer.init(|device| config.init(device)).with_label_smoothing(args.label_smoothing);
    trainer.fit(net, sgd(args.momentum, args.nesterov, args.weight_decay), loaders)
}

/// Loads the data set. One rank per machine finds or downloads it first and reports errors.
fn load(context: &Context, args: &MnistArgs) -> Result<Dataset> {
    let request = data::Request {
        kind: args.dataset,
        data_dir: args.data_dir.clone(),
        limits: [args.train_limit, args.eval_limit],
        download: context.environment().is_local_main(),
        progress: context.is_main(),
    };
    let data = context.local_main_first(|| data::load(&request))?;
    if let Some(notice) = &data.notice {
        context.console().warn(notice);
    }
    check_memory(context, args, &data)?;
    Ok(data)
}

/// Rejects `--data-on-device` if the images do not fit into device memory.
fn check_memory(context: &Context, args: &MnistArgs, data: &Dataset) -> Result<()> {
    if !args.data_on_device {
        return Ok(());
    }
    let device = context.local_device();
    let Some(free) = device.free_memory()? else { return Ok(()) };
    let images = [&data.train, &data.test].map(|images| resident_bytes(images, context.device()));
    let needed = MIN_FREE_MEMORY + images.iter().sum::<usize>();
    if free < needed {
        bail!(
            "--data-on-device: training with all images in memory takes at least {}, but {device} has {} free; leave out the flag",
            gigabytes(needed),
            gigabytes(free)
        );
    }
    Ok(())
}

/// This rank's share of the training, validation and test images.
fn loaders(context: &Context, trainer: &Trainer<'_, Net>, args: &MnistArgs, data: &Dataset) -> Loaders<Net> {
    type Samples = Arc<dyn burn::data::dataset::Dataset<Sample>>;
    let sharded = |samples: Samples, seed| {
        trainer.sharded(samples, HostBatcher { resident: args.data_on_device }, seed)
    };
    let finished = |loader: ShardedLoaderBuilder<_, _>, images: &Images| {
        let batcher = DeviceBatcher::new(images.clone());
        let finish = move |batch, device: &Device| batcher.finish(batch, device);
        Arc::new(FinishedLoader::new(loader.build(context.world()), Arc::new(finish)))
    };
    let evaluated = |samples: Samples, images: &Images| finished(sharded(samples, None), images);
    let (train, valid) = trainer.split(ImageDataset(data.train.clone()));
    let mut train = sharded(Arc::new(train), trainer.shuffle_seed());
    let (augment, seed) = (args.augment, args.trainer.seed);
    if !augment.is_none() {
        train = train.transform(move |epoch, sample: Sample| sample.moved(augment, seed, epoch));
    }
    let test = evaluated(Arc::new(ImageDataset(data.test.clone())), &data.test);
    Loaders::new(finished(train, &data.train), test)
        .with_validation(valid.map(|valid| evaluated(Arc::new(valid), &data.train) as _))
}
