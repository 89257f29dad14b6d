//! A training run, from flags to summary.

use crate::{
    batch::{ImageDataset, MnistBatch, Normaliser},
    cli::{Args, ProgressArg},
    config::{Plan, Role, RunConfig},
    console::{Console, Style},
    data::{self, Dataset},
    device::gpus,
    launch,
    model::{Net, NetConfig},
    quiet::Quiet,
    run_folder::{RunFolder, RunLog, Summary},
    weights,
    world::Environment,
};
use anyhow::{Context, Result, bail};
use burn::optim::{ModuleOptimizer, SgdConfig, momentum::MomentumConfig};
use burn::tensor::Device;
use burn::train::{
    Learner, SupervisedTraining, TrainingStrategy,
    logger::InMemoryMetricLogger,
    metric::LossMetric,
    renderer::{MetricsRenderer, default_renderer},
};
use collective::{
    Options, ProcessGroup, World,
    loader::{DistributedLoader, ShardedLoader},
    metric::GlobalAccuracy,
    sampler::mix,
    strategy::{DistributedDataParallel, Observer},
    sync_batch_norm::convert_sync_batch_norm,
};
use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

/// Decides what this process is, and does it: start the ranks, or be one.
pub fn run(args: &Args) -> Result<ExitCode> {
    match Plan::decide(args, Environment::detect()?, gpus())? {
        Plan::Launch { ranks, why } => launch::ranks(ranks, &why),
        Plan::Train(role) => {
            train(args, &role)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// One rank's run. Everything below is the same at every world size.
fn train(args: &Args, role: &Role) -> Result<()> {
    let (began, environment) = (Instant::now(), role.environment);
    let mut config = RunConfig::new(args, role);
    let console = Arc::new(Console::new(Style::choose(args.progress, environment.is_main()), args.epochs));
    use_threads(config.threads)?;

    let group = connect(args, environment)?;
    let data = load_data(args, environment, &group, &console)?;
    let (train, test) = loaders(args, &group, &data, &mut config);

    let device = role.device.burn().autodiff();
    device.seed(args.seed);
    let net = network(&config, environment, &device, &group)?;
    // Each rank drops out its own units.
    device.seed(mix(args.seed, 1 + environment.rank as u64));

    let output = environment.is_main().then(|| Output::create(args, &config)).transpose()?;
    // A rank cannot know why there are so many of it; its launcher does.
    let why = std::env::var(launch::WHY).unwrap_or_else(|_| role.why.clone());
    console.header(&config, &why, group.transport(), &data.source);
    let mut observers: Vec<Arc<dyn Observer>> = vec![console.clone()];
    observers.extend(output.iter().map(|output| output.log.clone() as Arc<dyn Observer>));

    let mut ddp = DistributedDataParallel::new(group.clone(), &device, train.clone(), test.clone())
        .with_observer(Arc::new(observers))
        .with_reducer(args.gradients.reducer())
        .with_accumulation(args.gradients.accumulate)
        .with_clip(args.gradients.gradient_clip)
        .with_max_steps(args.max_steps);
    if let Some(replicas) = &role.replicas {
        ddp = ddp.with_devices(replicas.config(args, config.threads));
    }
    let ddp = Arc::new(ddp);
    let training = SupervisedTraining::<Net>::new(".", train.clone(), test)
        .metrics((LossMetric::new(), GlobalAccuracy::default()))
        .with_metric_logger(InMemoryMetricLogger::default())
        .with_application_logger(None)
        .num_epochs(args.epochs);
    let renderer = renderer(args, environment, training.interrupter())?;
    let learner = Learner::new(net, optimizer(&config), config.schedule(train.steps()));
    let result = training
        .renderer(renderer)
        .with_training_strategy(TrainingStrategy::Custom(ddp.clone()))
        .launch(learner);

    if let Some(failure) = ddp.failure() {
        return Err(failure.into());
    }
    if let Some(error) = result.error {
        bail!("training stopped: {error}");
    }
    if let Some(output) = output {
        let summary = output.summary(&config, group.transport(), began.elapsed())?;
        output.folder.write_model(result.model)?;
        output.folder.write_summary(&summary)?;
        console.say(&format!("test accuracy {:.2} %", 100.0 * summary.test_accuracy));
        console.say(&format!("run folder    {}", output.folder.path().display()));
    }
    group.destroy();
    Ok(())
}

/// Flex computes on rayon's global pool.
pub fn use_threads(threads: usize) -> Result<()> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .with_context(|| format!("cannot start {threads} compute thread(s)"))
}

/// The group of all ranks; a single device is a world of one.
fn connect(args: &Args, environment: Environment) -> Result<ProcessGroup> {
    if environment.world_size == 1 {
        return Ok(ProcessGroup::solo());
    }
    let options = Options::default().timeout(Duration::from_secs_f64(args.timeout)).transport(args.transport);
    let options = options.rank(environment.rank).world_size(environment.world_size);
    Ok(ProcessGroup::init(environment.init_method(args.transport)?, options)?)
}

/// One rank a machine looks the data up, or downloads it, and reads it; then the others do. Its
/// error about the data is therefore the only one.
fn load_data(
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
    let digests = group.all_gather_object(&data.digest())?;
    if let Some(rank) = digests.iter().position(|digest| *digest != digests[0]) {
        bail!(
            "rank {rank} does not have the data that rank 0 has; give all machines the same --data-dir or --dataset"
        )
    }
    Ok(data)
}

type Loader = Arc<ShardedLoader<crate::batch::Sample, MnistBatch>>;

/// This rank's share of the training and test images.
fn loaders(args: &Args, group: &ProcessGroup, data: &Dataset, config: &mut RunConfig) -> (Loader, Loader) {
    let world = World { rank: group.rank(), size: group.world_size() };
    let loader = |images: &data::Images, seed| {
        let images = Arc::new(ImageDataset(images.clone()));
        Arc::new(ShardedLoader::new(images, Arc::new(Normaliser), world, args.batch_size, seed, args.workers))
    };
    let seed = (!args.no_shuffle).then_some(args.seed);
    let (train, test) = (loader(&data.train, seed), loader(&data.test, None));
    config.dataset = data.name.into();
    config.train_samples = train.samples();
    config.test_samples = test.samples();
    (train, test)
}

/// The network, equal on all ranks once rank 0's weights are broadcast.
fn network(
    config: &RunConfig,
    environment: Environment,
    device: &Device,
    group: &ProcessGroup,
) -> Result<Net> {
    let mut net = NetConfig { batch_norm: config.batch_norm, dropout: config.dropout }.init(device);
    if config.sync_bn {
        // In a group of its own it never waits behind gradients.
        net = convert_sync_batch_norm(net, &group.split(0, 0)?)?;
    }
    match &config.init_from {
        Some(path) if environment.is_main() => weights::load(net, path),
        Some(_) | None => Ok(net),
    }
}

/// SGD with momentum as in PyTorch: no dampening.
fn optimizer(config: &RunConfig) -> ModuleOptimizer {
    let momentum = MomentumConfig::new().with_momentum(config.momentum).with_dampening(0.0);
    SgdConfig::new().with_momentum((config.momentum > 0.0).then_some(momentum)).init()
}

/// burn-train's dashboard where it is asked for; our console shows everything else.
fn renderer(
    args: &Args,
    environment: Environment,
    interrupter: burn::train::Interrupter,
) -> Result<Box<dyn MetricsRenderer>> {
    if args.progress != ProgressArg::Tui || !environment.is_main() {
        return Ok(Box::new(Quiet));
    }
    if !cfg!(feature = "tui") {
        bail!("--progress tui: this program was built without the feature `tui`");
    }
    if !std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        bail!("--progress tui needs a terminal as standard output");
    }
    Ok(default_renderer(interrupter, None))
}

/// What rank 0 leaves behind.
struct Output {
    folder: RunFolder,
    log: Arc<RunLog>,
}

impl Output {
    fn create(args: &Args, config: &RunConfig) -> Result<Self> {
        let folder = RunFolder::create(args.run_dir.clone())?;
        folder.write_config(config)?;
        let log = Arc::new(folder.log()?);
        Ok(Self { folder, log })
    }

    fn summary(&self, config: &RunConfig, transport: &str, elapsed: Duration) -> Result<Summary> {
        let progress = self.log.progress()?;
        Ok(Summary {
            test_accuracy: progress.evaluation.accuracy,
            test_loss: progress.evaluation.loss,
            images_per_second: progress.samples as f64 / progress.training.as_secs_f64().max(1e-9),
            world_size: config.world_size,
            mode: config.mode,
            device: config.device,
            transport: transport.into(),
            dataset: config.dataset.clone(),
            epochs: progress.epoch,
            steps: progress.step,
            seconds: elapsed.as_secs_f64(),
            parameter_digest: progress.digest,
        })
    }
}
