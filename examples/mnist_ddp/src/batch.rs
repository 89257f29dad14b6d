//! Images as tensors: a Burn data set over [`Images`], and batchers for the host and for GPUs.
//!
//! On a GPU, images are uploaded as bytes or stay in device memory, and are normalised and augmented there.

use crate::{
    augment::{Augment, Movement, Mover},
    data::{Images, MEAN, PIXELS, SIDE, STD, normalise, normalised},
};
use burn::data::{
    dataloader::batcher::Batcher,
    dataset::{Dataset, DatasetError},
};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use burn_ddp::device::is_flex;
use std::sync::OnceLock;

/// A batch on its device.
#[derive(Clone, Debug)]
pub struct MnistBatch {
    /// Normalised images, `[batch, 1, 28, 28]`.
    pub images: Tensor<4>,
    /// Labels from 0 to 9, `[batch]`.
    pub labels: Tensor<1, Int>,
}

burn_ddp::scatter!(MnistBatch { images, labels });

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

    fn label(&self) -> i32 {
        self.images.labels[self.index].into()
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

/// Builds [`MnistBatch`]es on the host.
pub struct Normaliser;

impl Batcher<Sample, MnistBatch> for Normaliser {
    fn batch(&self, samples: Vec<Sample>, device: &Device) -> MnistBatch {
        let size = samples.len();
        let mut pixels = Vec::with_capacity(size * PIXELS);
        for Sample { images, index, movement } in &samples {
            match movement {
                None => pixels.extend(normalised(images.image(*index))),
                Some(movement) => pixels.extend(movement.apply(images.image(*index)).map(normalise)),
            }
        }
        let labels: Vec<i32> = samples.iter().map(Sample::label).collect();
        MnistBatch {
            images: Tensor::from_data(TensorData::new(pixels, [size, 1, SIDE, SIDE]), device),
            labels: Tensor::from_data(TensorData::new(labels, [size]), device),
        }
    }
}

/// The part of a batch that a data worker prepares.
pub enum HostBatch {
    /// A complete batch, for the CPU.
    Ready(Box<MnistBatch>),
    /// Bytes to be uploaded.
    Bytes { pixels: Vec<u8>, labels: Vec<i32>, movements: Vec<f32> },
    /// Indices of images that are on the device.
    Rows { rows: Vec<i32>, movements: Vec<f32> },
}

/// Prepares [`HostBatch`]es.
pub struct HostBatcher {
    /// Whether the images are in device memory.
    pub resident: bool,
}

impl Batcher<Sample, HostBatch> for HostBatcher {
    fn batch(&self, samples: Vec<Sample>, device: &Device) -> HostBatch {
        if !self.resident && (is_flex(device) || !device.supports_dtype(DType::U8)) {
            return HostBatch::Ready(Box::new(Normaliser.batch(samples, device)));
        }
        let mut movements = Vec::new();
        for movement in samples.iter().filter_map(|sample| sample.movement.as_ref()) {
            movement.extend_parameters(&mut movements);
        }
        if self.resident {
            let rows = samples.iter().map(|sample| sample.index as i32).collect();
            return HostBatch::Rows { rows, movements };
        }
        let mut pixels = Vec::with_capacity(samples.len() * PIXELS);
        samples.iter().for_each(|sample| pixels.extend_from_slice(sample.images.image(sample.index)));
        HostBatch::Bytes { pixels, labels: samples.iter().map(Sample::label).collect(), movements }
    }
}

/// Computes [`MnistBatch`]es from [`HostBatch`]es, all on one device.
pub struct DeviceBatcher {
    images: Images,
    /// Pixels of all images, `[images, PIXELS]`, and labels, `[images]`, that stay on the device.
    resident: OnceLock<(Tensor<2, Int>, Tensor<1, Int>)>,
    mover: OnceLock<Mover>,
}

impl DeviceBatcher {
    /// A batcher for `images`.
    pub fn new(images: Images) -> Self {
        Self { images, resident: OnceLock::new(), mover: OnceLock::new() }
    }

    /// Computes the batch on `device`.
    pub fn finish(&self, batch: HostBatch, device: &Device) -> MnistBatch {
        // The graph of a device with autodiff starts at the finished batch.
        let plain = device.clone().without_autodiff();
        let (pixels, labels, movements) = match batch {
            HostBatch::Ready(batch) => return *batch,
            HostBatch::Bytes { pixels, labels, movements } => {
                let (pixels, labels) = uploaded(pixels, labels, &plain);
                (pixels, labels, movements)
            }
            HostBatch::Rows { rows, movements } => {
                let count = rows.len();
                let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [count]), &plain);
                let (pixels, labels) = self.resident.get_or_init(|| {
                    let labels = self.images.labels.iter().map(|label| i32::from(*label));
                    uploaded(self.images.pixels.to_vec(), labels.collect(), &plain)
                });
                let (pixels, labels) =
                    (pixels.clone().select(0, rows.clone()), labels.clone().select(0, rows));
                (pixels, labels, movements)
            }
        };
        let count = labels.dims()[0];
        let mut pixels = pixels.cast(FloatDType::F32);
        if !movements.is_empty() {
            let each = movements.len() / count;
            let movements = Tensor::from_data(TensorData::new(movements, [count, each]), &plain);
            pixels = self.mover.get_or_init(|| Mover::new(&plain)).moved(pixels, &movements);
        }
        // The operations of `data::normalise`, in the same order.
        let images = pixels.div_scalar(255.0).sub_scalar(MEAN).div_scalar(STD);
        let images = images.reshape([count, 1, SIDE, SIDE]);
        match device.is_autodiff() {
            true => MnistBatch { images: Tensor::from_inner(images), labels: Tensor::from_inner(labels) },
            false => MnistBatch { images, labels },
        }
    }
}

/// The integer type for bytes on a device.
fn byte(device: &Device) -> DType {
    if device.supports_dtype(DType::U8) { DType::U8 } else { DType::I32 }
}

/// Uploads pixels, `[count, PIXELS]`, and labels, `[count]`.
///
/// The pixels are uploaded as one dimension, because a tensor with several is copied row by row.
fn uploaded(pixels: Vec<u8>, labels: Vec<i32>, device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    let count = labels.len();
    let pixels = TensorData::new(pixels, [count * PIXELS]);
    let pixels = Tensor::<1, Int>::from_data(pixels, (device, byte(device)));
    let labels = Tensor::from_data(TensorData::new(labels, [count]), (device, DType::I32));
    (pixels.reshape([count, PIXELS]), labels)
}

/// Bytes of device memory for images that stay on `device`.
pub fn resident_bytes(images: &Images, device: &Device) -> usize {
    let pixel = if byte(device) == DType::U8 { 1 } else { size_of::<i32>() };
    images.len() * (PIXELS * pixel + size_of::<i32>())
}
