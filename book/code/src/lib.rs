//! What the programs of the course share: the images and the network.

// ANCHOR: imports
use burn::module::Module;
use burn::nn::{
    Linear, LinearConfig, Relu,
    conv::{Conv2d, Conv2dConfig},
    loss::CrossEntropyLossConfig,
    pool::{MaxPool2d, MaxPool2dConfig},
};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_ddp::{Context, ReduceOp, World, sampler::DistributedSampler};
pub use mnist::data::DataArgs;
use mnist::data::{self, Images, Places};
// ANCHOR_END: imports

// ANCHOR: data
/// Loads the training and the test images. With `download`, MNIST is downloaded if it is not found.
///
/// # Errors
/// If files are missing or damaged.
pub fn load(args: &DataArgs, download: bool) -> anyhow::Result<(Images, Images)> {
    let data = data::load(args, &Places::from_process(download, download)?)?;
    if let (true, Some(notice)) = (download, &data.notice) {
        eprintln!("warning: {notice}");
    }
    Ok((data.train, data.test))
}

/// Normalised images `[batch, 1, 28, 28]` and labels `[batch]`.
pub type Batch = (Tensor<4>, Tensor<1, Int>);

/// Copies images to a device.
pub fn batch(images: &Images, indices: &[usize], device: &Device) -> Batch {
    let mut pixels = Vec::with_capacity(indices.len() * 28 * 28);
    for index in indices {
        pixels.extend(data::normalised(images.image(*index)));
    }
    let labels: Vec<i32> =
        indices.iter().map(|index| i32::from(images.labels[*index])).collect();
    let pixels = TensorData::new(pixels, [indices.len(), 1, 28, 28]);
    (
        Tensor::from_data(pixels, device),
        Tensor::from_data(TensorData::new(labels, [indices.len()]), device),
    )
}

/// The order of `len` samples in `epoch`: the same on every machine, different in every epoch.
pub fn shuffled(len: usize, epoch: usize) -> Vec<usize> {
    DistributedSampler::new(len, World { rank: 0, size: 1 }, Some(7)).order(epoch)
}
// ANCHOR_END: data

// ANCHOR: net
/// Two convolutions and a linear layer; 5,994 parameters.
#[derive(Module, Debug)]
pub struct Net {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
    output: Linear,
}

impl Net {
    pub fn new(device: &Device) -> Self {
        Net {
            conv1: Conv2dConfig::new([1, 8], [5, 5]).init(device),
            conv2: Conv2dConfig::new([8, 16], [5, 5]).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            output: LinearConfig::new(16 * 4 * 4, 10).init(device),
        }
    }

    /// Maps images `[batch, 1, 28, 28]` to logits `[batch, 10]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let relu = Relu::new();
        let x = self.pool.forward(relu.forward(self.conv1.forward(images))); // [batch, 8, 12, 12]
        let x = self.pool.forward(relu.forward(self.conv2.forward(x))); // [batch, 16, 4, 4]
        self.output.forward(x.flatten(1, 3))
    }

    /// Computes the mean loss `[1]` of a batch.
    pub fn loss(&self, (images, labels): Batch) -> Tensor<1> {
        let logits = self.forward(images);
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, labels)
    }
}

/// Counts the images that the network classifies correctly.
pub fn correct(
    net: &Net,
    images: &Images,
    indices: &[usize],
    device: &Device,
) -> i64 {
    let count = |part: &[usize]| {
        let (images, labels) = batch(images, part, device);
        net.forward(images)
            .argmax(1)
            .squeeze_dim::<1>(1)
            .equal(labels)
            .int()
            .sum()
            .into_scalar::<i64>()
    };
    indices.chunks(256).map(count).sum()
}
// ANCHOR_END: net

// ANCHOR: ranks

/// Loads the images on every rank. One rank per machine downloads them first, while the others wait.
///
/// # Errors
/// If files are missing or damaged, or another rank fails.
pub fn load_on_ranks(
    context: &Context,
    args: &DataArgs,
) -> anyhow::Result<(Images, Images)> {
    let downloads = context.environment().is_local_main();
    context.local_main_first(|| load(args, downloads))
}

/// Test accuracy in percent. Each rank tests its part of the images.
///
/// # Errors
/// If another rank fails.
pub fn accuracy(
    context: &Context,
    net: &Net,
    images: &Images,
) -> anyhow::Result<f64> {
    let mine: Vec<usize> =
        (context.rank()..images.len()).step_by(context.world_size()).collect();
    let mut count =
        [correct(net, images, &mine, &context.device().clone().inner())];
    context.group().all_reduce(&mut count, ReduceOp::Sum)?;
    Ok(100.0 * count[0] as f64 / images.len() as f64)
}
// ANCHOR_END: ranks
