//! The parts of a training run: threads, group, data, network, display.

use crate::{
    allocator::keep_memory,
    batch::{ImageDataset, MnistBatch, Normaliser, Sample},
    cli::{Args, ProgressArg},
    console::Console,
    data::{self, Dataset},
    device::LocalDevice,
    model::{Net, NetConfig},
    quiet::Quiet,
    run_config::RunConfig,
    weights::{self, Loaded},
    world::Environment,
};
use anyhow::{Context, Result, bail};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use burn::train::renderer::{MetricsRenderer, default_renderer};
use collective::{
    Options, ProcessGroup,
    flex::is_flex,
    loader::{DistributedLoader, ShardedLoader},
    precision::Precision,
    sync_batch_norm::convert_sync_batch_norm,
};
use std::{sync::Arc, time::Duration};

/// Burn builds an optimizer's loaded state on its default device, which is a GPU in a build that
/// can use one.
pub(super) fn restore_on(device: LocalDevice) {
    if device == LocalDevice::Cpu && std::env::var_os("BURN_DEVICE").is_none() {
        // SAFETY: no other thread has been started but the one that waits for signals.
        unsafe { std::env::set_var("BURN_DEVICE", "flex") };
    }
}

/// Makes ready to compute on the CPU: Flex does so on rayon's global pool.
pub fn use_threads(threads: usize) -> Result<()> {
    keep_memory();
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .with_context(|| format!("cannot start {threads} compute thread(s)"))
}

/// The group of all ranks; a single device is a world of one.
pub(super) fn connect(args: &Args, environment: Environment) -> Result<ProcessGroup> {
    let options = Options::default().timeout(Duration::from_secs_f64(args.timeout));
    environment.connect(args.transport, options, &args.world)
}

/// One rank a machine looks the data up, or downloads it, and reads it; then the others do. Its
/// error about the data is therefore the only one.
pub(super) fn load_data(
    args: &Args,
    environment: Environment,
    group: &ProcessGroup,
    console: &Console,
) -> Result<Dataset> {
    let request = data::Request {
        kind: args.dataset,
        data_dir: args.data_dir.clone(),
        seed: args.seed,
        download: environment.is_local_main(),
        progress: console.is_visible(),
    };
    let load = || data::prepare(&request)?.load([args.train_limit, args.eval_limit]);
    let first = request.download.then(load).transpose()?;
    // Others may wait here for a download.
    group.barrier()?;
    let data = first.map_or_else(load, Ok)?;
    if let Some(notice) = &data.notice {
        console.warn(notice);
    }
    Ok(data)
}

/// The digest of the images, which must be the same on all ranks.
pub(super) fn same_data(data: &Dataset, group: &ProcessGroup) -> Result<String> {
    let digest = data.digest();
    let digests = group.all_gather_object(&digest)?;
    if let Some(rank) = digests.iter().position(|digest| *digest != digests[0]) {
        bail!(
            "rank {rank} does not have the data that rank 0 has; give all machines the same --data-dir or --dataset"
        )
    }
    Ok(digest)
}

pub(super) type Loader = Arc<ShardedLoader<Sample, MnistBatch>>;

/// This rank's share of the training and test images.
pub(super) fn loaders(
    args: &Args,
    group: &ProcessGroup,
    data: &Dataset,
    config: &mut RunConfig,
) -> (Loader, Loader) {
    let world = group.world();
    let loader = |images: &data::Images, seed, precision| {
        let (images, batcher) = (Arc::new(ImageDataset(images.clone())), Arc::new(Normaliser(precision)));
        ShardedLoader::new(images, batcher, world, args.batch_size, seed, args.workers)
    };
    let seed = (!args.no_shuffle).then_some(args.seed);
    let mut train = loader(&data.train, seed, args.gradients.precision);
    let (augment, seed) = (args.optimisation.augment, args.seed);
    if !augment.is_none() {
        train =
            train.with_transform(Arc::new(move |epoch, sample: Sample| sample.moved(augment, seed, epoch)));
    }
    // Evaluation is f32, as the parameters are.
    let (train, test) = (Arc::new(train), Arc::new(loader(&data.test, None, Precision::F32)));
    config.dataset = data.name.into();
    config.flags.decided("dataset", data.name);
    config.train_samples = train.samples();
    config.test_samples = test.samples();
    (train, test)
}

/// Makes parameters draw their values: by themselves they wait for their first use, and one that goes to
/// another device first draws them there, with that device's generator.
struct Draw;

impl ModuleVisitor for Draw {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        parameter.val();
    }
}

/// The network, equal on all ranks once rank 0's weights are broadcast.
pub(super) fn network(
    args: &Args,
    config: &RunConfig,
    environment: Environment,
    device: &Device,
    group: &ProcessGroup,
    console: &Console,
) -> Result<Net> {
    // Drawn on the CPU, as PyTorch's `Net().to(device)` is: the same weights whatever the device.
    let host = Device::flex().autodiff();
    host.seed(args.seed);
    let net = NetConfig { batch_norm: config.batch_norm, dropout: config.dropout }.init(&host);
    net.visit(&mut Draw);
    let mut net = if is_flex(device) { net } else { net.fork(device) };
    net = net.with_label_smoothing(config.optimisation.label_smoothing);
    if config.sync_bn {
        // In a group of its own it never waits behind gradients.
        net = convert_sync_batch_norm(net, &group.split(0, 0)?)?;
    }
    match &config.init_from {
        Some(path) if environment.is_main() => {
            let Loaded { net, fitting, complaints } = weights::load(net, path).context("--init-from")?;
            if !args.no_strict && !complaints.is_empty() {
                bail!(
                    "--init-from {} does not fit the network: {}; --no-strict takes what fits",
                    path.display(),
                    complaints.join("; ")
                );
            }
            if fitting == 0 {
                bail!("--init-from {}: nothing in it fits the network", path.display());
            }
            complaints.iter().for_each(|what| console.warn(&format!("--init-from: {what}")));
            Ok(net)
        }
        Some(_) | None => Ok(net),
    }
}

/// burn-train's dashboard where it is asked for; our console shows everything else.
pub(super) fn renderer(
    args: &Args,
    environment: Environment,
    interrupter: burn::train::Interrupter,
) -> Box<dyn MetricsRenderer> {
    if args.progress == ProgressArg::Tui && environment.is_main() {
        return default_renderer(interrupter, None);
    }
    Box::new(Quiet)
}
