//! A training run, from flags to summary.

use crate::{
    batch::{ImageDataset, MnistBatch, Normaliser},
    checkpoint::{Found, Identity},
    cli::{Args, ProgressArg},
    config::{Plan, Role},
    confusion::Confusion,
    console::{Console, Style},
    data::{self, Dataset},
    data_plane,
    device::{LocalDevice, gpus},
    exit, launch,
    model::{Net, NetConfig},
    output::Output,
    quiet::Quiet,
    run_config::RunConfig,
    stop::{self, StopSignals},
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
    precision::Precision,
    strategy::{Checkpoints, DistributedDataParallel, Observer, Snapshot},
    sync_batch_norm::convert_sync_batch_norm,
};
use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

/// Decides what this process is, and does it: start the ranks, or be one.
pub fn run(args: &Args) -> Result<ExitCode> {
    let environment = Environment::detect()?;
    if environment.is_none_or(|environment| environment.is_main()) {
        args.checkpoints.check(args.run_dir.as_deref())?;
    }
    match Plan::decide(args, environment, gpus(args.device))? {
        Plan::Launch { ranks, why } => launch::ranks(ranks, &why),
        Plan::Train(role) => train(args, &role),
    }
}

/// One rank's run. Everything below is the same at every world size.
fn train(args: &Args, role: &Role) -> Result<ExitCode> {
    let signals = StopSignals::watch()?;
    restore_on(role.device);
    role.device.check_memory()?;
    let (began, environment) = (Instant::now(), role.environment);
    let mut config = RunConfig::new(args, role);
    let console = Arc::new(Console::new(Style::choose(args.progress, environment.is_main()), args.epochs));
    use_threads(config.threads)?;

    let group = connect(args, environment)?;
    let transport = data_plane::attach(args.transport, role.device, &group, false, &console)?;
    let data = load_data(args, environment, &group, &console)?;
    let (train, test) = loaders(args, &group, &data, &mut config);

    let identity = Identity::new(&config, &data.digest());
    let look = || Found::look_and_say(args, &config, &identity, &console);
    let mut found = environment.is_main().then(look).transpose()?.flatten();
    let kept = found.as_mut().and_then(|found| found.checkpoint.as_mut()).map(|c| c.take_snapshot());
    let resume = Snapshot::share(kept, &group)?;
    let mut epochs = args.epochs;
    if resume.is_some() {
        // They have been trained on since.
        config.init_from = None;
        let over = found.as_ref().is_some_and(|found| found.stopped_early(args.checkpoints.early_stop));
        epochs = if group.broadcast_object(&over, 0)? { 0 } else { epochs };
    }
    let device = role.device.burn()?.autodiff();
    args.gradients.precision.check(&device)?;
    device.seed(args.seed);
    let net = network(args, &config, environment, &device, &group, &console)?;

    let open = || Output::open(args, &config, found.as_ref(), identity, began);
    let output = environment.is_main().then(open).transpose()?;
    // A rank cannot know why there are so many of it; its launcher does.
    let why = std::env::var(launch::WHY).unwrap_or_else(|_| role.why.clone());
    console.header(&config, &why, &transport, &data.source);
    if let Some(memory) = role.device.memory()? {
        console.say(&format!("memory    {memory}"));
    }
    let mut observers: Vec<Arc<dyn Observer>> = vec![console.clone()];
    observers.extend(output.iter().map(|output| output.log.clone() as Arc<dyn Observer>));

    let mut ddp = DistributedDataParallel::new(group.clone(), &device, train.clone(), test.clone())
        .with_observer(Arc::new(observers))
        .with_callback(Confusion::new(output.as_ref().map(|output| output.confusion_file())))
        .with_reducer(args.gradients.reducer())
        .with_accumulation(args.gradients.accumulate)
        .with_clip(args.gradients.gradient_clip)
        .with_max_steps(args.max_steps)
        .with_checkpoints(Checkpoints {
            every: args.checkpoints.save_every,
            keeper: output.as_ref().map(|output| output.keeper.clone()),
        })
        .with_resume(resume)
        .with_seed(args.seed)
        .with_stop({
            let signals = signals.clone();
            Arc::new(move || signals.asked())
        });
    if let Some(replicas) = &role.replicas {
        ddp = ddp.with_devices(replicas.config(args, config.threads)?);
    }
    let ddp = Arc::new(ddp);
    let training = SupervisedTraining::<Net>::new(".", train.clone(), test)
        .metrics((LossMetric::new(), GlobalAccuracy::default()))
        .with_metric_logger(InMemoryMetricLogger::default())
        .with_application_logger(None)
        .num_epochs(epochs);
    let renderer = renderer(args, environment, training.interrupter())?;
    let learner = Learner::new(net, optimizer(&config), config.schedule(train.steps()));
    signals.training_begins();
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
    if let Some(signal) = ddp.stopped() {
        if let Some(output) = output {
            let (name, step) = (stop::name(signal), output.log.progress()?.step);
            let path = output.folder.path().display();
            console.say(&format!("stopped by {name} after step {step}; go on with --resume {path}"));
        }
        group.destroy();
        return Ok(ExitCode::from(exit::stopped_by(signal)));
    }
    if let Some(output) = output {
        let summary = output.summary(&config, &transport)?;
        output.folder.write_model(result.model)?;
        output.folder.write_summary(&summary)?;
        console.say(&format!("test accuracy {:.2} %", 100.0 * summary.test_accuracy));
        console.say(&format!("run folder    {}", output.folder.path().display()));
    }
    group.destroy();
    Ok(ExitCode::SUCCESS)
}

/// Burn builds an optimizer's loaded state on its default device, which is a GPU in a build that
/// can use one.
fn restore_on(device: LocalDevice) {
    if device == LocalDevice::Cpu && std::env::var_os("BURN_DEVICE").is_none() {
        // SAFETY: no other thread has been started but the one that waits for signals.
        unsafe { std::env::set_var("BURN_DEVICE", "flex") };
    }
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
    let loader = |images: &data::Images, seed, precision| {
        let (images, batcher) = (Arc::new(ImageDataset(images.clone())), Arc::new(Normaliser(precision)));
        Arc::new(ShardedLoader::new(images, batcher, world, args.batch_size, seed, args.workers))
    };
    let seed = (!args.no_shuffle).then_some(args.seed);
    let (train, test) = (
        loader(&data.train, seed, args.gradients.precision),
        // Evaluation is f32, as the parameters are.
        loader(&data.test, None, Precision::F32),
    );
    config.dataset = data.name.into();
    config.train_samples = train.samples();
    config.test_samples = test.samples();
    (train, test)
}

/// The network, equal on all ranks once rank 0's weights are broadcast.
fn network(
    args: &Args,
    config: &RunConfig,
    environment: Environment,
    device: &Device,
    group: &ProcessGroup,
    console: &Console,
) -> Result<Net> {
    let mut net = NetConfig { batch_norm: config.batch_norm, dropout: config.dropout }.init(device);
    if config.sync_bn {
        // In a group of its own it never waits behind gradients.
        net = convert_sync_batch_norm(net, &group.split(0, 0)?)?;
    }
    match &config.init_from {
        Some(path) if environment.is_main() => {
            let (net, skipped) = weights::load(net, path, !args.no_strict)?;
            skipped.iter().for_each(|what| console.warn(&format!("--init-from: {what}")));
            Ok(net)
        }
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
