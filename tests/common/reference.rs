//! PyTorch's reference trajectories in `tests/fixtures`, which the README there describes.
//!
//! Losses of training from known weights on the first images of MNIST, in the file's order.

use rand_mt::Mt;
use safetensors::{Dtype, serialize, tensor::TensorView};
use serde::Deserialize;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// The first 6000 training and 2000 test images of MNIST.
pub fn mnist() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/mnist_ddp/subset")
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// A trajectory, with its initial weights in a temporary file.
pub struct Reference {
    pub golden: Golden,
    weights: TempDir,
}

#[derive(Deserialize)]
pub struct Golden {
    /// Argument of `torch.manual_seed` before the network is created.
    seed: u32,
    batch_norm: bool,
    pub global_batch: usize,
    pub lr: f64,
    pub momentum: f64,
    pub loss: Vec<f64>,
    pub test_accuracy_first_2000: f64,
}

impl Reference {
    pub fn read(name: &str) -> Reference {
        let text = fs::read(fixtures().join(format!("{name}.trajectory.json"))).expect("a fixture");
        let golden: Golden = serde_json::from_slice(&text).expect("a trajectory");
        let weights = tempfile::tempdir().expect("temporary folder");
        let reference = Reference { golden, weights };
        reference.golden.write_weights(&reference.weights());
        reference
    }

    fn weights(&self) -> PathBuf {
        self.weights.path().join("init.safetensors")
    }

    /// Flags of a run that follows the trajectory, without mode, batch size and number of steps.
    pub fn flags(&self) -> String {
        format!(
            "--data-dir {} --dataset mnist --init-from {} --no-shuffle --dropout 0 --scale-lr none --lr {} --momentum {}",
            mnist().display(),
            self.weights().display(),
            self.golden.lr,
            self.golden.momentum,
        )
    }
}

impl Golden {
    /// Writes PyTorch's default initialisation of the network, bit for bit, with DistributedDataParallel's prefix.
    fn write_weights(&self, path: &Path) {
        let mut generator = Mt::new(self.seed);
        let mut tensors = Vec::new();
        for (layer, shape) in [
            ("conv1", vec![32, 1, 3, 3]),
            ("conv2", vec![64, 32, 3, 3]),
            ("fc1", vec![128, 9216]),
            ("fc2", vec![10, 128]),
        ] {
            let inputs: usize = shape[1..].iter().product();
            let outputs = shape[0];
            tensors.push((
                format!("{layer}.weight"),
                shape.clone(),
                uniform(&mut generator, shape.iter().product(), inputs),
            ));
            tensors.push((format!("{layer}.bias"), vec![outputs], uniform(&mut generator, outputs, inputs)));
            if let (true, Some(number)) = (self.batch_norm, layer.strip_prefix("conv")) {
                for (name, value) in
                    [("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)]
                {
                    tensors.push((format!("bn{number}.{name}"), vec![outputs], vec![value; outputs]));
                }
            }
        }
        let bytes: Vec<Vec<u8>> = tensors
            .iter()
            .map(|(.., values)| values.iter().flat_map(|v| v.to_le_bytes()).collect())
            .collect();
        let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
            (format!("module.{name}"), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("its size"))
        });
        fs::write(path, serialize(views, None).expect("consistent tensors")).expect("written");
    }
}

/// `torch.nn.init.kaiming_uniform_(a=sqrt(5))` on a CPU: 24 random bits, scaled with one rounding.
pub fn uniform(generator: &mut Mt, count: usize, inputs: usize) -> Vec<f32> {
    let bound = (1.0 / (inputs as f64).sqrt()) as f32;
    let unit = |bits: u32| (bits & 0xFF_FFFF) as f32 / (1 << 24) as f32;
    (0..count).map(|_| unit(generator.next_u32()).mul_add(bound - -bound, -bound)).collect()
}
