//! Images as tensors: a Burn data set over [`Images`], and batchers for the host and for GPUs.

mod on_device;

pub use on_device::{DeviceBatcher, HostBatch, HostBatcher, resident_bytes};

use crate::{
    augment::{Augment, Movement},
    data::{Images, PIXELS, normalise},
};
use burn::data::{
    dataloader::batcher::Batcher,
    dataset::{Dataset, DatasetError},
};
use burn::tensor::{Device, Int, Tensor, TensorData};

/// A batch on its device.
#[derive(Clone, Debug)]
pub struct MnistBatch {
    /// Normalised images, `[batch, 1, 28, 28]`.
    pub images: Tensor<4>,
    /// Labels from 0 to 9, `[batch]`.
    pub labels: Tensor<1, Int>,
}

/// One image, as u8 in the data set's memory.
#[derive(Clone, Debug)]
pub struct Sample {
    images: Images,
    index: usize,
    movement: Option<Movement>,
}

impl Sample {
    /// Applies the augmentation of `epoch`.
    pub fn moved(mut self, augment: Augment, seed: u64, epoch: usize) -> Self {
        self.movement = Some(augment.draw(seed, epoch, self.index));
        self
    }

    /// Appends the normalised pixels to a batch.
    fn extend(&self, batch: &mut Vec<f32>) {
        match self.movement {
            None => self.images.extend_normalised(self.index, batch),
            Some(movement) => {
                batch.extend(movement.of(self.images.image(self.index)).map(normalise));
            }
        }
    }
}

/// A Burn data set over [`Images`].
pub struct ImageDataset(pub Images);

impl Dataset<Sample> for ImageDataset {
    fn get(&self, index: usize) -> Result<Sample, DatasetError> {
        Ok(Sample { images: self.0.clone(), index, movement: None })
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Builds [`MnistBatch`]es.
pub struct Normaliser;

impl Batcher<Sample, MnistBatch> for Normaliser {
    fn batch(&self, samples: Vec<Sample>, device: &Device) -> MnistBatch {
        let size = samples.len();
        let mut pixels = Vec::with_capacity(size * PIXELS);
        for sample in &samples {
            sample.extend(&mut pixels);
        }
        let labels: Vec<i32> = samples.iter().map(|s| i32::from(s.images.label(s.index))).collect();
        MnistBatch {
            images: Tensor::from_data(TensorData::new(pixels, [size, 1, 28, 28]), device),
            labels: Tensor::from_data(TensorData::new(labels, [size]), device),
        }
    }
}
