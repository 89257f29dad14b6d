//! Conversion of images to tensors: a Burn data set and batchers for host and GPU.

mod on_device;

pub use on_device::{DeviceBatcher, HostBatch, HostBatcher, resident_bytes};

use crate::{
    augment::{Augment, Transform},
    data::{Images, PIXELS, normalise},
};
use burn::data::{
    dataloader::batcher::Batcher,
    dataset::{Dataset, DatasetError},
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use collective::precision::Precision;

/// A batch on its device.
#[derive(Clone, Debug)]
pub struct MnistBatch {
    /// `[batch, 1, 28, 28]`, normalised.
    pub images: Tensor<4>,
    /// `[batch]`, 0 to 9.
    pub labels: Tensor<1, Int>,
}

/// Reference to one image of a data set, with its transform.
#[derive(Clone, Debug)]
pub struct Sample {
    images: Images,
    index: usize,
    transform: Option<Transform>,
}

impl Sample {
    /// Sets the random transform of this image in `epoch`.
    pub fn augmented(mut self, augment: Augment, seed: u64, epoch: usize) -> Self {
        self.transform = Some(augment.sample(seed, epoch, self.index));
        self
    }

    /// Appends the normalised pixels to a batch.
    fn extend(&self, batch: &mut Vec<f32>) {
        match self.transform {
            None => self.images.extend_normalised(self.index, batch),
            Some(transform) => {
                batch.extend(transform.apply(self.images.image(self.index)).map(normalise));
            }
        }
    }
}

/// [`Images`] as a Burn data set.
pub struct ImageDataset(pub Images);

impl Dataset<Sample> for ImageDataset {
    fn get(&self, index: usize) -> Result<Sample, DatasetError> {
        Ok(Sample { images: self.0.clone(), index, transform: None })
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Host batcher with images in the precision of the network.
pub struct Normaliser(pub Precision);

impl Batcher<Sample, MnistBatch> for Normaliser {
    fn batch(&self, samples: Vec<Sample>, device: &Device) -> MnistBatch {
        let size = samples.len();
        let mut pixels = Vec::with_capacity(size * PIXELS);
        for sample in &samples {
            sample.extend(&mut pixels);
        }
        let labels: Vec<i32> = samples.iter().map(|s| i32::from(s.images.label(s.index))).collect();
        MnistBatch {
            images: Tensor::from_data(
                TensorData::new(pixels, [size, 1, 28, 28]),
                (device, DType::from(self.0.dtype())),
            ),
            labels: Tensor::from_data(TensorData::new(labels, [size]), device),
        }
    }
}
