//! Step time of networks that a user writes, with Burn's layers and with those of `burn_ddp::nn`.
//!
//! ```text
//! cargo run --example own_modules -- --mode single --device cpu --threads 1
//! python3 benches/peers/own_modules.py mlp 1 40
//! ```
//!
//! A step is forward, backward and Adam on one batch that does not change.

mod networks;

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use burn_ddp::{
    ContextArgs, DistributedDataParallel, ProcessGroup, loader::ShardedBatch, process::timing::median,
};
use clap::{Parser, ValueEnum};
use networks::{burns, ours};
use std::{process::ExitCode, time::Instant};

burn_ddp::global_allocator!();

/// Measure training steps of networks of Burn's layers and of burn_ddp::nn
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
    /// Networks to measure; all by default
    #[arg(long, value_delimiter = ',')]
    net: Vec<Net>,
    /// Measured steps per network and round
    #[arg(long, default_value_t = 40)]
    steps: usize,
    /// Rounds, in which Burn's layers and burn_ddp::nn alternate
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Measure burn_ddp::nn only
    #[arg(long)]
    ours: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Net {
    Mlp,
    Cnn,
    Lstm,
    Gru,
    Encoder,
    Autoencoder,
    Mobile,
}

/// A network, its optimizer, and the rest of a measurement.
struct Run<'a> {
    args: &'a Args,
    device: Device,
}

impl Run<'_> {
    /// Median time of a step in milliseconds, and the last loss.
    fn time<M: Module + 'static, const D: usize>(
        &self,
        net: fn(&Device) -> M,
        mut optimizer: ModuleOptimizer,
        shape: [usize; D],
        loss: impl Fn(&M, Tensor<D>) -> Tensor<1> + Send + Sync + Clone + 'static,
    ) -> anyhow::Result<(f64, f64)> {
        const WARM_UP: usize = 5;
        self.device.seed(1);
        let mut model = DistributedDataParallel::new(net(&self.device), &ProcessGroup::solo())?;
        let x = Tensor::<D>::random(shape, Distribution::Normal(0.0, 1.0), &self.device);
        let (mut times, mut last) = (Vec::new(), 0.0);
        for step in 0..self.args.steps + WARM_UP {
            let start = Instant::now();
            let (batch, loss) = (ShardedBatch::whole(x.clone(), shape[0]), loss.clone());
            let (value, gradients) = model.backward(batch, move |net, x| loss(net, x))?;
            model.step(&mut optimizer, 1e-3, gradients)?;
            last = value.mean()?;
            if step >= WARM_UP {
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        Ok((median(times), last))
    }

    fn targets(&self) -> Tensor<1, Int> {
        let classes: Vec<i32> = (0..self.args.batch as i32).map(|at| at % 10).collect();
        Tensor::from_data(TensorData::new(classes, [self.args.batch]), &self.device)
    }
}

/// Step time and loss of a network of the module `$of`.
macro_rules! measure {
    ($of:ident, $run:expr, $net:expr) => {{
        let (run, batch) = ($run, $run.args.batch);
        let classify = |y: Tensor<1, Int>| move |logits| $of::cross_entropy(logits, y.clone());
        let loss = classify(run.targets());
        match $net {
            Net::Mlp => {
                run.time($of::Mlp::new, $of::adam(), [batch, 784], move |net, x| loss(net.forward(x)))
            }
            Net::Cnn => {
                run.time($of::Cnn::new, $of::adam(), [batch, 1, 28, 28], move |net, x| loss(net.forward(x)))
            }
            Net::Lstm => run.time($of::LstmClassifier::new, $of::adam(), [batch, 28, 28], move |net, x| {
                loss(net.forward(x))
            }),
            Net::Gru => run.time($of::GruClassifier::new, $of::adam(), [batch, 28, 28], move |net, x| {
                loss(net.forward(x))
            }),
            Net::Encoder => {
                run.time($of::Encoder::new, $of::adam(), [batch, 64, 128], move |net, x| loss(net.forward(x)))
            }
            Net::Mobile => run
                .time($of::Mobile::new, $of::adam(), [batch, 3, 64, 64], move |net, x| loss(net.forward(x))),
            Net::Autoencoder => run.time($of::Autoencoder::new, $of::adam(), [batch, 1, 28, 28], |net, x| {
                $of::squared_error(net.forward(x.clone()), x)
            }),
        }
    }};
}

fn main() -> ExitCode {
    let args = Args::parse();
    burn_ddp::launch_with(&args.context, |context| {
        let run = Run { args: &args, device: context.device().clone().autodiff() };
        let nets = if args.net.is_empty() { Net::value_variants() } else { &args.net };
        for net in nets {
            let name = net.to_possible_value().expect("no value is skipped");
            for _ in 0..args.rounds {
                if !args.ours {
                    let (time, loss) = measure!(burns, &run, net)?;
                    println!("{} burn {time:.3} ms/step loss {loss:.5}", name.get_name());
                }
                let (time, loss) = measure!(ours, &run, net)?;
                println!("{} burn-ddp {time:.3} ms/step loss {loss:.5}", name.get_name());
            }
        }
        Ok(())
    })
}
