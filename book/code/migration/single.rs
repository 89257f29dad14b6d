//! Coming from PyTorch: training on one device.

mod shared;

use burn::data::dataloader::DataLoaderBuilder;
use burn::optim::GradientsParams;
use burn_ddp::device::{DeviceArg, LocalDevice, gpus};
use burn_ddp::run::weights;
use shared::{Net, Stack, digits, sgd};
use std::path::Path;

fn main() -> anyhow::Result<()> {
    let device = match gpus(DeviceArg::Auto) {
        Ok(gpus) => LocalDevice::Gpu(gpus.kind, 0),
        Err(_) => LocalDevice::Cpu,
    };
    let device = device.burn()?.autodiff();
    device.seed(7);
    let mut net = Net::new(false, &device);
    let loader = DataLoaderBuilder::new(Stack)
        .batch_size(64)
        .shuffle(7)
        .set_device(device)
        .build(digits(0..1003));
    let mut optimizer = sgd();
    for epoch in 1..=5 {
        let mut sum = 0.0;
        for batch in loader.iter() {
            let batch = batch?;
            let samples = batch.1.dims()[0];
            let loss = net.loss(batch);
            sum += loss.clone().into_scalar::<f64>() * samples as f64;
            let gradients = GradientsParams::from_grads(loss.backward(), &net);
            net = optimizer.step(0.05, net, gradients);
        }
        println!("epoch {epoch}  train loss {:.6}", sum / 1003.0);
    }
    weights::save(&net, Path::new("single.safetensors"), "")
}
