//! A training run, from flags to summary.

mod parts;
mod resumed;

pub use parts::use_threads;

use crate::{
    cli::Args,
    config::{Plan, Role},
    confusion::Confusion,
    console::{Console, Style},
    data::Images,
    data_plane,
    device::gpus,
    exit, launch,
    misclassified::Misclassified,
    model::Net,
    output::Output,
    run_config::RunConfig,
    stop::{self, StopSignals},
    tensorboard::GradientHistograms,
};
use anyhow::{Result, bail};
use burn::train::{
    Learner, SupervisedTraining, TrainingStrategy, logger::InMemoryMetricLogger, metric::LossMetric,
};
use collective::{
    ProcessGroup,
    data_parallel::DataParallelConfig,
    loader::DistributedLoader,
    metric::GlobalAccuracy,
    strategy::{Checkpoints, DistributedDataParallel, Observer},
};
use parts::{connect, load_data, loaders, network, renderer, restore_on, same_data};
use resumed::Resumed;
use std::{process::ExitCode, sync::Arc, time::Instant};

/// Decides what this process is, and does it: start the ranks, or be one.
pub fn run(args: &Args) -> Result<ExitCode> {
    let environment = args.world.environment()?;
    if environment.is_none_or(|environment| environment.is_main()) {
        args.checkpoints.check(args.run_dir.as_deref())?;
        args.optimisation.check(args.momentum, args.warmup_epochs)?;
        Style::check(args.progress)?;
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
    let console =
        Arc::new(Console::new(Style::choose(args.progress, environment.is_main()), args.epochs.begun()));
    use_threads(config.threads)?;

    let group = connect(args, environment)?;
    let transport = data_plane::attach(args.transport, role.device, &group, false, &console)?;
    let data = load_data(args, environment, &group, &console)?;
    let (train, test) = loaders(args, &group, &data, &mut config);
    group.verify_settings(&config.settings()?)?;
    let digest = same_data(&data, &group)?;

    let resumed = Resumed::find(args, &mut config, &digest, &group, &console)?;
    let device = role.device.burn()?.autodiff();
    args.gradients.precision.check(&device)?;
    device.seed(args.seed);
    let net = network(args, &config, environment, &device, &group, &console)?;
    let replicas = role.replicas.as_ref();
    let replicas = replicas.map(|replicas| replicas.config(args, config.threads, &console)).transpose()?;
    let memory = role.device.memory()?;

    // Nothing is written before every rank has passed its checks.
    group.barrier()?;
    let output = environment.is_main().then(|| resumed.open(args, &config, began)).transpose()?;
    // A rank cannot know why there are so many of it; its launcher does.
    let why = std::env::var(launch::WHY).unwrap_or_else(|_| role.why.clone());
    console.header(&config, &why, &transport, &data.source);
    if let Some((warmup, steps)) = config.unfinished_warmup(train.steps()) {
        console.warn(&format!(
            "--warmup-epochs {}: the run ends after {steps} steps, before the warm-up of {}: the rate reaches {:.6} and not {:.6}",
            config.warmup_epochs, warmup.warmup_steps, warmup.at(steps), warmup.target
        ));
    }
    if let Some(memory) = memory {
        console.say(&format!("memory    {memory}"));
    }
    if let Some(output) = &output {
        output.say_watched(&console);
    }
    let mut observers: Vec<Arc<dyn Observer>> = vec![console.clone()];
    observers.extend(output.iter().map(|output| output.log.clone() as Arc<dyn Observer>));
    observers.extend(output.iter().map(|output| output.events.clone() as Arc<dyn Observer>));

    let ddp = DistributedDataParallel::new(group.clone(), &device, train.clone(), test.clone())
        .with_observer(Arc::new(observers))
        .with_max_steps(resumed.last_step(&config, &*train))
        .with_resume(resumed.snapshot);
    let ddp = watched(ddp, args, data.test, &group, output.as_ref());
    let ddp = Arc::new(configured(ddp, args, replicas, output.as_ref()));
    let training = SupervisedTraining::<Net>::new(".", train.clone(), test)
        .metrics((LossMetric::new(), GlobalAccuracy::default()))
        .with_metric_logger(InMemoryMetricLogger::default())
        .with_application_logger(None)
        .num_epochs(resumed.epochs);
    let renderer = renderer(args, environment, training.interrupter());
    let optimizer = config.optimisation.sgd(config.momentum);
    let learner = Learner::new(net, optimizer, config.schedule(train.steps()));
    let _training = signals.training_begins();
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
    group.destroy();
    if let Some(signal) = ddp.stopped() {
        output.map_or(Ok(()), |output| output.say_stopped(signal, &console))?;
        return Ok(ExitCode::from(exit::stopped_by(signal)));
    }
    output.map_or(Ok(()), |output| output.finish(result.model, &config, &transport, &console))?;
    Ok(ExitCode::SUCCESS)
}

/// The strategy, with what follows the answers to the test images and, if asked, the gradients.
fn watched(
    ddp: DistributedDataParallel<Net>,
    args: &Args,
    test: Images,
    group: &ProcessGroup,
    output: Option<&Output>,
) -> DistributedDataParallel<Net> {
    let world = group.world();
    let folder = |output: &Output| (output.folder.path().to_owned(), output.events.clone());
    let ddp = ddp
        .with_callback(Confusion::new(output.map(Output::confusion_file)))
        .with_callback(Misclassified::new(test, world, output.map(folder)));
    match args.histograms {
        Some(every) => {
            ddp.with_callback(GradientHistograms::new(every, output.map(|output| output.events.clone())))
        }
        None => ddp,
    }
}

/// The strategy, as the flags say.
fn configured(
    ddp: DistributedDataParallel<Net>,
    args: &Args,
    replicas: Option<DataParallelConfig>,
    output: Option<&Output>,
) -> DistributedDataParallel<Net> {
    let ddp = ddp
        .with_reducer(args.gradients.reducer())
        .with_accumulation(args.gradients.accumulate)
        .with_clip(args.gradients.gradient_clip)
        .with_checkpoints(Checkpoints {
            every: args.checkpoints.save_every,
            keeper: output.map(|output| output.keeper.clone()),
        })
        .with_seed(args.seed)
        .allow_non_finite_loss(args.optimisation.allow_nan)
        .with_stop(Arc::new(stop::asked));
    match replicas {
        Some(replicas) => ddp.with_devices(replicas),
        None => ddp,
    }
}
