//! Course, chapter "MNIST on one device": a training loop.

// ANCHOR: args
use burn::module::Module;
use burn::optim::{GradientsParams, SgdConfig, momentum::MomentumConfig};
use burn::tensor::Device;
use clap::Parser;
use course::{DataArgs, Net, batch, correct, load, shuffled};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    data: DataArgs,
    /// Number of epochs
    #[arg(long, default_value_t = 1)]
    epochs: usize,
    /// Samples per step
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// Learning rate
    #[arg(long, default_value_t = 0.05)]
    lr: f64,
}
// ANCHOR_END: args

// ANCHOR: main
fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let (train, test) = load(&args.data, true)?;
    let device = Device::flex().autodiff();
    device.seed(7);
    let mut net = Net::new(&device);
    let mut optimizer = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new().with_momentum(0.9)))
        .init();
    for epoch in 1..=args.epochs {
        let mut sum = 0.0;
        for indices in shuffled(train.len(), epoch).chunks(args.batch_size) {
            let loss = net.loss(batch(&train, indices, &device));
            sum += loss.clone().into_scalar::<f64>() * indices.len() as f64;
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            net = optimizer.step(args.lr, net, gradients);
        }
        let all: Vec<usize> = (0..test.len()).collect();
        let correct = correct(&net.valid(), &test, &all, &device.clone().inner());
        println!("epoch {epoch}  train loss {:.6}", sum / train.len() as f64);
        println!(
            "test accuracy {:.2} %",
            100.0 * correct as f64 / test.len() as f64
        );
    }
    Ok(())
}
// ANCHOR_END: main
