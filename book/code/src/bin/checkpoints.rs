//! Course, chapter "Checkpoints and resuming": a training loop that resumes after its last complete epoch.

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{ModuleOptimizer, SgdConfig, momentum::MomentumConfig};
use burn::store::ModuleRecord;
use burn::tensor::{Bytes, Device, Tensor, TensorData};
use burn_ddp::loader::{DistributedLoader, ShardedLoader};
use burn_ddp::{Context, ContextArgs, DistributedDataParallel, module_state};
use clap::{Parser, ValueEnum};
use std::path::{Path, PathBuf};
use std::{fs, process::ExitCode};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
    /// Number of epochs
    #[arg(long, default_value_t = 10)]
    epochs: usize,
    /// Folder of the checkpoints
    #[arg(long)]
    folder: PathBuf,
    /// Part of the state that a resumed run does not restore
    #[arg(long, value_enum)]
    forget: Option<Part>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    Optimizer,
    Epoch,
}

/// Batches two inputs and the target into a tensor `[batch, 3]`.
struct Stack;
impl Batcher<[f32; 3], Tensor<2>> for Stack {
    fn batch(&self, samples: Vec<[f32; 3]>, device: &Device) -> Tensor<2> {
        Tensor::from_data(
            TensorData::new(samples.concat(), [samples.len(), 3]),
            device,
        )
    }
}

// ANCHOR: files
/// The epoch of a checkpoint, and its records of the model and the optimizer.
type Checkpoint = (usize, Vec<u8>, Vec<u8>);

/// Writes the files to a temporary folder and renames it.
fn save(
    folder: &Path,
    epoch: usize,
    model: &Linear,
    optimizer: &ModuleOptimizer,
) -> anyhow::Result<()> {
    let temporary = folder.join("temporary");
    fs::create_dir_all(&temporary)?;
    model.clone().into_record().save(temporary.join("model.bpk"))?;
    optimizer.save(temporary.join("optimizer.bpk"))?;
    Ok(fs::rename(temporary, folder.join(epoch.to_string()))?)
}

/// Reads the newest checkpoint, if there is one.
fn newest(folder: &Path, epochs: usize) -> std::io::Result<Option<Checkpoint>> {
    let Some(epoch) =
        (1..=epochs).rfind(|epoch| folder.join(epoch.to_string()).exists())
    else {
        return Ok(None);
    };
    let read = |name: &str| fs::read(folder.join(epoch.to_string()).join(name));
    Ok(Some((epoch, read("model.bpk")?, read("optimizer.bpk")?)))
}
// ANCHOR_END: files

fn train(context: &Context, args: &Args) -> anyhow::Result<()> {
    let mut net =
        context.init_module(7, |device| LinearConfig::new(2, 1).init(device));
    let mut optimizer =
        SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init();
    // ANCHOR: resume
    let (mut done, bytes) = (0, Bytes::from_bytes_vec);
    // Rank 0 reads the files for all ranks.
    if let Some((epoch, model, state)) =
        context.group().run_on(0, || newest(&args.folder, args.epochs))?
    {
        context.print(&format!("resuming after epoch {epoch}"));
        net = net.try_load_record(ModuleRecord::from_bytes(bytes(model))?)?;
        if args.forget != Some(Part::Optimizer) {
            optimizer = optimizer.from_bytes(bytes(state))?;
        }
        done = epoch;
    }
    // ANCHOR_END: resume
    let forgotten = if args.forget == Some(Part::Epoch) { done } else { 0 };
    let mut model = DistributedDataParallel::new(net, context.group())?;
    let loader = ShardedLoader::builder(samples(), Stack)
        .batch_size(48 / context.world_size())
        .shuffle(7);
    let loader = loader.build(context.world());
    for epoch in done + 1..=args.epochs {
        let mut sum = 0.0;
        for batch in loader.epoch(epoch - forgotten, 0, context.device()) {
            let (loss, gradients) = model.backward(batch?, squared_error)?;
            model.step(&mut optimizer, 0.02, gradients)?;
            sum += loss.sum()?;
        }
        context.log(&format!("epoch {epoch}  train loss"), sum / 500.0)?;
        // The other ranks wait, and fail if it fails.
        context
            .group()
            .run_on(0, || save(&args.folder, epoch, &model, &optimizer))?;
    }
    context.print(&format!(
        "parameters {}",
        &module_state::digest(model.module())?[..16]
    ));
    Ok(())
}

/// Inputs `x`, `x²` and the target of every sample.
fn samples() -> InMemDataset<[f32; 3]> {
    let inputs = (0..500u16).map(|i| f32::from(i) / 250.0 - 1.0);
    InMemDataset::new(inputs.map(|x| [x, x * x, 1.0 + 2.0 * x - x * x]).collect())
}

/// Mean squared error `[1]` of a batch `[samples, 3]`.
fn squared_error(net: &Linear, batch: Tensor<2>) -> Tensor<1> {
    let (x, y) = (batch.clone().narrow(1, 0, 2), batch.narrow(1, 2, 1));
    (net.forward(x) - y).powi_scalar(2).mean()
}

fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| train(context, &args))
}
