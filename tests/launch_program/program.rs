//! A program with threads, a logger, a panic hook and several launches of its own, for the tests of `launch`.

mod layers;

use burn::nn::LinearConfig;
use burn::optim::SgdConfig;
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_ddp::{
    Context, ContextArgs, DistributedDataParallel, ReduceOp, StepOptions,
    device::faults,
    launch::spawn,
    loader::ShardedBatch,
    module_state,
    optim::{AdamConfig, decay::WeightDecayConfig},
    process::exit,
};
use clap::{Parser, ValueEnum};
use log::{LevelFilter, Log, Metadata, Record};
use std::{env, panic, process::ExitCode};

#[derive(Parser)]
struct Args {
    /// Compute before the launch
    #[arg(long)]
    compute: bool,
    /// Install a logger
    #[arg(long)]
    logger: Option<When>,
    /// Install a panic hook, and panic on the last rank
    #[arg(long)]
    panic: bool,
    /// Number of launches
    #[arg(long, default_value_t = 1)]
    launches: usize,
    /// Train a layer, and print the digest of each rank's replica
    #[arg(long)]
    train: bool,
    /// Train with Adam on fixed inputs, and print the weights' mean absolute value, too
    #[arg(long)]
    adam: bool,
    /// Print differences between layers and Burn's operations
    #[arg(long)]
    layers: bool,
    /// Launch two processes with `spawn`
    #[arg(long)]
    spawn: bool,
    #[command(flatten)]
    context: ContextArgs,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum When {
    Before,
    After,
    /// Before the launch, a logger that inspects its records
    Inspecting,
}

struct Logger {
    inspects: bool,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "program"
    }

    fn log(&self, record: &Record<'_>) {
        if self.inspects {
            faults::inspect(record);
        }
        if self.enabled(record.metadata()) {
            println!("log: {}", record.args());
        }
    }

    fn flush(&self) {}
}

/// Installs a logger as `env_logger::init` does, which panics if there is one.
fn install(inspects: bool) {
    let logger = if inspects { &Logger { inspects: true } } else { &Logger { inspects: false } };
    log::set_logger(logger).expect("no other logger");
    log::set_max_level(LevelFilter::Info);
}

/// Makes some steps with clipped gradients.
fn train(context: &Context, adam: bool) -> anyhow::Result<()> {
    let net = context.init_module(7, |device| LinearConfig::new(96, 64).init(device));
    let options = StepOptions { clip_grad_norm: Some(0.1), ..StepOptions::default() };
    let mut model = DistributedDataParallel::with_options(net, context.group(), options)?;
    let mut optimizer = match adam {
        true => AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.1))).init(),
        false => SgdConfig::new().init(),
    };
    for step in 0..4 {
        let item = match adam {
            true => {
                Tensor::<1, Int>::arange(step..768 + step, context.device()).float().sin().reshape([8, 96])
            }
            false => Tensor::<2>::random([8, 96], Distribution::Default, context.device()),
        };
        let inputs = ShardedBatch { item, samples: 8, global_samples: 8 * context.world_size(), last: false };
        let (_, gradients) =
            model.backward(inputs, |net, inputs| net.forward(inputs).powi_scalar(2).mean())?;
        model.step(&mut optimizer, 0.1, gradients)?;
    }
    println!("replica {}", module_state::digest(model.module())?);
    if adam {
        println!("weights {}", model.module().weight.val().abs().mean().into_scalar::<f32>());
    }
    Ok(())
}

fn rank(context: &Context, args: &Args) -> anyhow::Result<()> {
    if args.layers {
        layers::compare(&context.device().clone().inner());
        return Ok(());
    }
    if args.train {
        return train(context, args.adam);
    }
    if args.logger == Some(When::After) {
        install(false);
    }
    log::info!(target: "program", "rank {}", context.rank());
    let values = Tensor::<1>::ones([4], context.device()) * 2.0;
    let mut sum = [values.sum().into_scalar::<f32>()];
    context.group().all_reduce(&mut sum, ReduceOp::Sum)?;
    let restored_on = env::var("BURN_DEVICE").unwrap_or_default();
    println!("rank {}: {} threads, sum {}, {restored_on}", context.rank(), context.threads(), sum[0]);
    assert!(!args.panic || context.rank() + 1 < context.world_size(), "a defect");
    Ok(())
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.compute {
        let ones = || Tensor::<2>::ones([512, 512], &Device::flex());
        ones().matmul(ones()).into_data();
    }
    match args.logger {
        Some(When::Before) => install(false),
        Some(When::Inspecting) => install(true),
        Some(When::After) | None => {}
    }
    if args.panic {
        panic::set_hook(Box::new(|info| eprintln!("hook: {}", info.payload_as_str().unwrap_or_default())));
    }
    let mut code = ExitCode::SUCCESS;
    for _ in 0..args.launches {
        code = if args.spawn {
            exit::report(spawn(2, |_| Ok(ExitCode::SUCCESS)))
        } else {
            burn_ddp::launch_with(&args.context, |context| rank(context, &args))
        };
    }
    code
}
