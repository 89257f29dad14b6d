//! The chapter "Weights and predictions": weights in another program.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn_ddp::{launch_threads, run::weights};
use std::path::Path;

#[derive(Module, Debug)]
struct Network {
    first: Linear,
    last: Linear,
}

impl Network {
    fn new(units: usize, device: &Device) -> Self {
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        Self { first: layer(2, units), last: layer(units, 1) }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.last.forward(self.first.forward(x))
    }
}

/// A network with other fields.
#[derive(Module, Debug)]
struct Other {
    first: Linear,
    head: Linear,
}

// ANCHOR: predict
fn predict(run: &Path, x: [f32; 2]) -> anyhow::Result<f32> {
    let device = Device::flex();
    let network = weights::open(Network::new(8, &device), run)?;
    let output = network.forward(Tensor::from_data([x], &device));
    Ok(output.try_into_scalar()?)
}
// ANCHOR_END: predict

#[test]
fn weights_are_opened_and_all_misfits_are_listed() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("model.bpk");
    let outputs = launch_threads(1, |context| {
        let network = context.init_module(7, |device| Network::new(8, device));
        context.save(&network, &file)?;
        let x = Tensor::from_data([[0.5, 0.25]], context.device());
        Ok(network.forward(x).try_into_scalar::<f32>()?)
    })?;
    // A run folder has the file `model.bpk`, too.
    for path in [&file, folder.path()] {
        assert_eq!(predict(path, [0.5, 0.25])?, outputs[0]);
    }
    let device = Device::flex();
    let narrow = weights::open(Network::new(4, &device), &file).map(drop);
    let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
    let other = weights::open(Other { first: layer(2, 8), head: layer(8, 1) }, &file).map(drop);
    for (result, parts) in [
        (
            narrow,
            &["`first.weight` has the shape [2, 8] in the file, and [2, 4] in the network", "`last.weight`"]
                [..],
        ),
        (other, &["`head.weight` is missing from the file", "`last.weight` is not in the network"]),
    ] {
        let error = result.expect_err("it does not fit").to_string();
        for part in parts {
            assert!(error.contains("does not fit the network") && error.contains(part), "{part}: {error}");
        }
    }
    Ok(())
}
