//! Time of single layers of `burn_ddp::nn`, forward and backward, with the shapes of `benches/peers/layers.py`.
//!
//! ```text
//! cargo run --example layers -- --mode single --device cpu --threads 1
//! python3 benches/peers/layers.py 1
//! ```
//!
//! The time of the loss, a sum of the outputs with random factors, is subtracted.

mod shapes;

use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use burn_ddp::{ContextArgs, process::timing::median};
use clap::Parser;
use std::{process::ExitCode, time::Instant};

burn_ddp::global_allocator!();

/// Measure single layers of burn_ddp::nn
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
    /// Starts of the names of layers to measure; all by default
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Minimum seconds per layer
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
}

/// Measures layers on a device.
struct Bench<'a> {
    args: &'a Args,
    device: Device,
}

impl Bench<'_> {
    /// Prints the time of a layer, in milliseconds.
    fn layer<const D: usize, const E: usize>(
        &self,
        name: String,
        shape: [usize; D],
        forward: impl Fn(Tensor<D>) -> Tensor<E>,
    ) {
        let only = &self.args.only;
        if !only.is_empty() && !only.iter().any(|start| name.starts_with(start)) {
            return;
        }
        let x = self.random(shape);
        let shape = forward(x.clone()).dims();
        let (y, factors) = (self.random(shape), self.random(shape));
        let loss = self.time(|| y.clone().require_grad(), |y| (y * factors.clone()).sum());
        let whole = self.time(|| x.clone().require_grad(), |x| (forward(x) * factors.clone()).sum());
        println!("{name}\t{:.3}", whole - loss);
    }

    /// Median time of forward and backward in milliseconds.
    fn time<const D: usize>(
        &self,
        input: impl Fn() -> Tensor<D>,
        loss: impl Fn(Tensor<D>) -> Tensor<1>,
    ) -> f64 {
        const WARM_UP: usize = 2;
        const ROUNDS: usize = 5;
        let (mut times, mut begin) = (Vec::new(), Instant::now());
        while times.len() < WARM_UP + ROUNDS || begin.elapsed().as_secs_f64() < self.args.seconds {
            if times.len() == WARM_UP {
                begin = Instant::now();
            }
            let (x, start) = (input(), Instant::now());
            drop(loss(x).backward());
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        median(times.split_off(WARM_UP))
    }

    fn random<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        Tensor::random(shape, Distribution::Normal(0.0, 1.0), &self.device)
    }

    /// Classes or indices of vectors.
    fn indices<const D: usize>(&self, shape: [usize; D], below: usize) -> Tensor<D, Int> {
        let count = shape.iter().product();
        let values: Vec<i32> = (0..count).map(|at: usize| (at * 7919 % below) as i32).collect();
        Tensor::from_data(TensorData::new(values, shape), &self.device)
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| {
        let bench = Bench { args: &args, device: context.device().clone().autodiff() };
        bench.linear();
        bench.convolutions();
        bench.pooling();
        bench.normalisation();
        bench.activations();
        bench.recurrent();
        bench.attention();
        bench.losses();
        Ok(())
    })
}
