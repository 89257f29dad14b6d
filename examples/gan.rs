//! A generative adversarial network (Goodfellow et al. 2014, arXiv 1406.2661): two modules with an optimizer each, which
//! take steps in turn. The generator learns to draw points of a ring.
//!
//!     cargo run --example gan -- --state runs/gan.ckpt                      # DDP: a process per GPU, or two
//!     cargo run --example gan -- --state runs/gan.ckpt --epochs 40          # continues after its last epoch

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::nn::{LeakyReluConfig, Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Distribution, Tensor, TensorData, activation::log_sigmoid};
use burn_ddp::loader::{DistributedLoader, ShardedLoader};
use burn_ddp::{Context, ContextArgs, DistributedDataParallel, StepOptions, run::LoopState};
use clap::Parser;
use std::{f32::consts::TAU, path::PathBuf, process::ExitCode};

/// Train a generator of points
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
    /// Number of epochs
    #[arg(long, default_value_t = 20)]
    epochs: usize,
    /// File of the checkpoint, from which training continues if it exists
    #[arg(long)]
    state: PathBuf,
}

/// Size of the generator's input.
const NOISE: usize = 4;

/// Three linear layers: the generator `[batch, NOISE]` → `[batch, 2]`, or the discriminator `[batch, 2]` → `[batch, 1]`.
#[derive(Module, Debug)]
struct Layers {
    layers: Vec<Linear>,
}

impl Layers {
    fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        let sizes = [(inputs, 32), (32, 32), (32, outputs)];
        Self { layers: sizes.map(|(from, to)| LinearConfig::new(from, to).init(device)).into() }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let relu = LeakyReluConfig::new().init();
        let layers = self.layers.iter().enumerate();
        layers.fold(x, |x, (at, layer)| layer.forward(if at > 0 { relu.forward(x) } else { x }))
    }
}

/// Draws as many points as `like` has, without a graph for the generator.
fn draw(generator: &Layers, like: &Tensor<2>) -> Tensor<2> {
    let noise = Tensor::random([like.dims()[0], NOISE], Distribution::Normal(0.0, 1.0), &like.device());
    generator.forward(noise)
}

struct Stack;
impl Batcher<[f32; 2], Tensor<2>> for Stack {
    fn batch(&self, points: Vec<[f32; 2]>, device: &Device) -> Tensor<2> {
        Tensor::from_data(TensorData::new(points.concat(), [points.len(), 2]), device)
    }
}

/// Number of points of the data.
const POINTS: u16 = 4096;

/// Points of a ring of radius 1.
fn ring() -> InMemDataset<[f32; 2]> {
    InMemDataset::new(
        (0..POINTS).map(|i| TAU * f32::from(i) / f32::from(POINTS)).map(|a| [a.cos(), a.sin()]).collect(),
    )
}

fn train(context: &Context, args: &Args) -> anyhow::Result<()> {
    // ANCHOR: resume
    let mut generator = context.init_module(7, |device| Layers::new(NOISE, 2, device));
    let mut discriminator = context.init_module(8, |device| Layers::new(2, 1, device));
    let adam = || AdamConfig::new().with_beta_1(0.5).init();
    let (mut of_generator, mut of_discriminator, mut done) = (adam(), adam(), 0);
    let saved = context.load_state(&args.state)?;
    if let Some(saved) = &saved {
        generator = saved.load_module("generator", generator)?;
        discriminator = saved.load_module("discriminator", discriminator)?;
        of_generator = saved.load_optimizer("generator", of_generator)?;
        of_discriminator = saved.load_optimizer("discriminator", of_discriminator)?;
        done = saved.load_value("epochs")?;
        context.print(&format!("resuming after epoch {done}"));
    }
    let wrap = |module, seed| {
        let options = StepOptions { seed: Some(seed), ..StepOptions::default() };
        DistributedDataParallel::with_options(module, context.group(), options)
    };
    let (mut generator, mut discriminator) = (wrap(generator, 7)?, wrap(discriminator, 8)?);
    if let Some(saved) = saved {
        // The random numbers of a step depend on its number.
        generator.load_state(saved.load_value("generator's steps")?);
        discriminator.load_state(saved.load_value("discriminator's steps")?);
    }
    // ANCHOR_END: resume
    let loader = ShardedLoader::builder(ring(), Stack).batch_size(128 / context.world_size()).shuffle(7);
    let loader = loader.build(context.world());
    for epoch in done + 1..=args.epochs {
        let mut sums = [0.0; 2];
        // ANCHOR: steps
        for batch in loader.epoch(epoch, 0, context.device()) {
            let real = batch?;
            let same = real.clone();
            // The discriminator learns to tell points of the data from those that the generator draws.
            let frozen = generator.module().valid();
            let (loss, gradients) = discriminator.backward(real, |net, real| {
                let drawn = Tensor::from_inner(draw(&frozen, &real.clone().inner()));
                let right = log_sigmoid(net.forward(real)) + log_sigmoid(-net.forward(drawn));
                -right.mean()
            })?;
            discriminator.step(&mut of_discriminator, 2e-3, gradients)?;
            sums[0] += loss.sum()?;
            // The generator learns to draw points that the discriminator takes for those of the data.
            let frozen = discriminator.module().clone().no_grad();
            let (loss, gradients) = generator
                .backward(same, |net, real| -log_sigmoid(frozen.forward(draw(net, &real))).mean())?;
            generator.step(&mut of_generator, 2e-3, gradients)?;
            sums[1] += loss.sum()?;
        }
        // ANCHOR_END: steps
        let [of_d, of_g] = sums.map(|sum| sum / f64::from(POINTS));
        context.print(&format!("epoch {epoch}  discriminator loss {of_d:.6}  generator loss {of_g:.6}"));
        // ANCHOR: save
        context.save_state(&args.state, || {
            LoopState::new()
                .module("generator", generator.module())?
                .module("discriminator", discriminator.module())?
                .optimizer("generator", &of_generator)?
                .optimizer("discriminator", &of_discriminator)?
                .value("generator's steps", generator.state())?
                .value("discriminator's steps", discriminator.state())?
                .value("epochs", epoch)
        })?;
        // ANCHOR_END: save
    }
    let device = context.device().clone().inner();
    device.seed(9);
    let points = draw(&generator.valid(), &Tensor::zeros([512, 2], &device));
    let distance = (points.powi_scalar(2).sum_dim(1).sqrt() - 1.0).abs().mean().try_into_scalar::<f32>()?;
    context.print(&format!("mean distance of drawn points from the ring {distance:.4}"));
    let digests = (generator.synchronize()?, discriminator.synchronize()?);
    context.print(&format!("parameters {} {}", &digests.0[..16], &digests.1[..16]));
    Ok(())
}

fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| train(context, &args))
}
