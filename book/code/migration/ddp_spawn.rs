//! Coming from PyTorch: one process per device, started by the program itself.

mod shared;

use burn_ddp::device::{DeviceArg, LocalDevice, gpus};
use burn_ddp::launch::{Environment, spawn};
use burn_ddp::loader::{DistributedLoader, ShardedLoader};
use burn_ddp::{DistributedDataParallel, InitMethod, Options, ProcessGroup};
use clap::Parser;
use shared::{Net, Stack, digits, sgd};
use std::process::ExitCode;

#[derive(Parser)]
struct Args {
    /// Processes on this machine
    #[arg(long, default_value_t = 2)]
    processes: usize,
    /// Device: auto, cpu or cuda
    #[arg(long, default_value = "auto")]
    device: DeviceArg,
}

fn train(environment: Environment, args: &Args) -> anyhow::Result<ExitCode> {
    let device = match gpus(args.device) {
        Ok(gpus) => LocalDevice::Gpu(gpus.kind, environment.local_rank),
        Err(_) => LocalDevice::Cpu,
    };
    let device = device.burn()?.autodiff();
    let group = ProcessGroup::init(InitMethod::Env, Options::default())?;
    let loader = ShardedLoader::builder(digits(0..1003), Stack)
        .batch_size(64 / group.world_size())
        .shuffle(7);
    let loader = loader.build(group.world());
    device.seed(7);
    let mut model = DistributedDataParallel::new(Net::new(false, &device), &group)?;
    let mut optimizer = sgd();
    for epoch in 1..=5 {
        let mut sum = 0.0;
        for batch in loader.epoch(epoch, 0, &device) {
            let (loss, gradients) = model.backward(batch?, Net::loss)?;
            model.step(&mut optimizer, 0.05, gradients)?;
            sum += loss.sum()?;
        }
        group.on_rank_zero(|| {
            println!("epoch {epoch}  train loss {:.6}", sum / 1003.0)
        });
    }
    println!("rank {}  parameters {}", group.rank(), &model.synchronize()?[..16]);
    group.destroy();
    Ok(ExitCode::SUCCESS)
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    spawn(args.processes, |environment| train(environment, &args))
}
