//! Coming from PyTorch: the complete training template.

mod shared;

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use burn_ddp::loader::{DistributedLoader, ShardedLoader};
use burn_ddp::lr::{LrScaling, LrSchedule, ScheduledLr, WarmupLr};
use burn_ddp::run::{EvaluatedSet, tensorboard::EventLog};
use burn_ddp::{
    Context, ContextArgs, DistributedDataParallel, ReduceOp, StepOptions, StepState,
};
use clap::Parser;
use shared::{Batch, Net, Sample, Stack, digits, sgd};
use std::path::{Path, PathBuf};
use std::{fs, process::ExitCode};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
    /// Number of epochs
    #[arg(long, default_value_t = 5)]
    epochs: usize,
    /// Folder of checkpoints and TensorBoard's event files
    #[arg(long)]
    folder: PathBuf,
    /// Resume from the newest checkpoint
    #[arg(long)]
    resume: bool,
}

/// Epoch, step state, model and optimizer.
type Checkpoint = (usize, StepState, Vec<u8>, Vec<u8>);

fn save(
    folder: &Path,
    epoch: usize,
    model: &DistributedDataParallel<Net>,
    optimizer: &ModuleOptimizer,
) -> anyhow::Result<()> {
    let (checkpoint, temporary) =
        (folder.join(epoch.to_string()), folder.join("temporary"));
    fs::create_dir_all(&temporary)?;
    model.module().clone().into_record().save(temporary.join("model.bpk"))?;
    optimizer.save(temporary.join("optimizer.bpk"))?;
    fs::write(temporary.join("step.json"), serde_json::to_vec(&model.state())?)?;
    if checkpoint.exists() {
        fs::remove_dir_all(&checkpoint)?;
    }
    Ok(fs::rename(temporary, checkpoint)?)
}

fn newest(args: &Args) -> anyhow::Result<Option<Checkpoint>> {
    let exists = |epoch: &usize| args.folder.join(epoch.to_string()).exists();
    let Some(epoch) = (1..=args.epochs).rfind(exists).filter(|_| args.resume)
    else {
        return Ok(None);
    };
    let read =
        |name: &str| fs::read(args.folder.join(epoch.to_string()).join(name));
    let state = serde_json::from_slice(&read("step.json")?)?;
    Ok(Some((epoch, state, read("model.bpk")?, read("optimizer.bpk")?)))
}

/// Computes the accuracy over the samples of all ranks.
fn accuracy(
    context: &Context,
    net: &Net,
    test: &ShardedLoader<Sample, Batch>,
) -> anyhow::Result<f64> {
    let mut sums = [0.0, 0.0];
    for batch in test.epoch(1, 0, &context.device().clone().inner()) {
        let batch = batch?;
        // A rank without samples has padding.
        if batch.samples > 0 {
            let (images, classes) = batch.item;
            let answers = net.forward(images).argmax(1).squeeze_dim::<1>(1);
            sums[0] +=
                answers.equal(classes).int().sum().into_scalar::<i64>() as f64;
            sums[1] += batch.samples as f64;
        }
    }
    context.group().all_reduce(&mut sums, ReduceOp::Sum)?;
    Ok(sums[0] / sums[1])
}

fn train(context: &Context, args: &Args) -> anyhow::Result<()> {
    let load = |range| ShardedLoader::builder(digits(range), Stack).batch_size(32);
    let train = load(0..1003).shuffle(7).build(context.world());
    let test = load(2000..2203).build(context.world());
    let mut net = context.init_module(7, |device| Net::new(true, device));
    let mut optimizer = sgd();
    let (mut done, mut state) = (0, StepState::default());
    // Rank 0 reads the files for all ranks.
    if let Some((epoch, steps, parameters, moments)) =
        context.group().run_on(0, || newest(args))?
    {
        net = net.try_load_record(ModuleRecord::from_bytes(
            Bytes::from_bytes_vec(parameters),
        )?)?;
        optimizer = optimizer.from_bytes(Bytes::from_bytes_vec(moments))?;
        (done, state) = (epoch, steps);
    }
    let options = StepOptions { sync_batch_norm: true, ..StepOptions::default() };
    let mut model =
        DistributedDataParallel::with_options(net, context.group(), options)?;
    model.load_state(state);
    let lr = 0.02 * LrScaling::Linear.factor(context.world_size());
    let (total, warmup) = (args.epochs * train.steps(), WarmupLr::new(lr, lr, 0));
    let schedule =
        ScheduledLr::new(LrSchedule::Cosine, warmup, total, Some(train.steps()));
    let events = context
        .is_main()
        .then(|| EventLog::create(&args.folder, done, EvaluatedSet::Test));
    let events = events.transpose()?;
    for epoch in done + 1..=args.epochs {
        let mut sum = 0.0;
        for batch in train.epoch(epoch, 0, context.device()) {
            let lr = schedule.at(model.state().steps + 1);
            let (loss, gradients) = model.backward(batch?, Net::loss)?;
            model.step(&mut optimizer, lr, gradients)?;
            sum += loss.sum()?;
        }
        // Compares the parameters of all ranks and copies rank 0's running statistics.
        model.synchronize()?;
        let (loss, accuracy) =
            (sum / 1003.0, accuracy(context, &model.valid(), &test)?);
        context.print(&format!(
            "epoch {epoch}  train loss {loss:.6}  test accuracy {accuracy:.4}"
        ));
        let lr = schedule.at(model.state().steps);
        for (tag, value) in [("loss", loss), ("accuracy", accuracy), ("lr", lr)] {
            events
                .iter()
                .for_each(|events| events.scalar(tag.into(), epoch, value));
        }
        context
            .group()
            .run_on(0, || save(&args.folder, epoch, &model, &optimizer))?;
    }
    events.map_or(Ok(()), |events| events.flush())?;
    println!("rank {}  parameters {}", context.rank(), &model.synchronize()?[..16]);
    Ok(())
}

fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| train(context, &args))
}
