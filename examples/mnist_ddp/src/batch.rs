//! Images as tensors: a Burn data set over [`Images`], and its batches.
//!
//! On a GPU, images are uploaded as bytes or stay in device memory, and are normalised and augmented there.

use crate::{
    augment::{Augment, Mover},
    data::{Images, MEAN, PIXELS, SIDE, STD},
};
use burn::data::{
    dataloader::batcher::Batcher,
    dataset::{Dataset, DatasetError},
};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use burn_ddp::device::is_flex;
use std::sync::{Arc, OnceLock};

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
    /// Parameters of the augmentation; empty without it.
    movement: Vec<f32>,
}

impl Sample {
    /// Applies the augmentation of `epoch`.
    pub fn moved(mut self, augment: Augment, seed: u64, epoch: usize) -> Self {
        self.movement = augment.draw(seed, epoch, self.index);
        self
    }
}

/// A Burn data set over [`Images`].
pub struct ImageDataset(pub Images);

impl Dataset<Sample> for ImageDataset {
    fn get(&self, index: usize) -> Result<Sample, DatasetError> {
        Ok(Sample { images: self.0.clone(), index, movement: Vec::new() })
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// The part of a batch that a data worker prepares.
pub enum HostBatch {
    /// A complete batch, for the CPU.
    Ready(Box<MnistBatch>),
    /// Bytes to be uploaded.
    Bytes { pixels: Vec<u8>, labels: Vec<u8>, movements: Vec<f32> },
    /// Indices of images that are on the device.
    Rows { images: Images, rows: Vec<i32>, movements: Vec<f32> },
}

/// Builds batches of one data set on one device.
///
/// A data worker prepares [`HostBatch`]es, and [`finish`](Self::finish) computes them.
#[derive(Clone, Default)]
pub struct ImageBatcher {
    is_resident: bool,
    /// Pixels of all images, `[images, PIXELS]`, and labels, `[images]`, that stay on the device.
    resident: Arc<OnceLock<(Tensor<2, Int>, Tensor<1, Int>)>>,
    mover: Arc<OnceLock<Mover>>,
}

impl ImageBatcher {
    /// A batcher, which keeps all images in device memory if `is_resident`.
    pub fn new(is_resident: bool) -> Self {
        Self { is_resident, ..Self::default() }
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
            HostBatch::Rows { images, rows, movements } => {
                let upload = || uploaded(images.pixels.to_vec(), images.labels.to_vec(), &plain);
                let (pixels, labels) = self.resident.get_or_init(upload);
                let rows = Tensor::<1, Int>::from_data(&rows[..], &plain);
                (pixels.clone().select(0, rows.clone()), labels.clone().select(0, rows), movements)
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

impl Batcher<Sample, HostBatch> for ImageBatcher {
    fn batch(&self, samples: Vec<Sample>, device: &Device) -> HostBatch {
        let movements = samples.iter().flat_map(|sample| &sample.movement).copied().collect();
        if let Some(first) = samples.first().filter(|_| self.is_resident) {
            let rows = samples.iter().map(|sample| sample.index as i32).collect();
            return HostBatch::Rows { images: first.images.clone(), rows, movements };
        }
        let mut pixels = Vec::with_capacity(samples.len() * PIXELS);
        samples.iter().for_each(|sample| pixels.extend_from_slice(sample.images.image(sample.index)));
        let labels = samples.iter().map(|sample| sample.images.labels[sample.index]).collect();
        let batch = HostBatch::Bytes { pixels, labels, movements };
        // A CPU's batches are computed by the data workers.
        if is_flex(device) { HostBatch::Ready(Box::new(self.finish(batch, device))) } else { batch }
    }
}

impl Batcher<Sample, MnistBatch> for ImageBatcher {
    fn batch(&self, samples: Vec<Sample>, device: &Device) -> MnistBatch {
        let batch: HostBatch = self.batch(samples, device);
        self.finish(batch, device)
    }
}

/// The integer type for bytes on a device.
fn byte(device: &Device) -> DType {
    if device.supports_dtype(DType::U8) { DType::U8 } else { DType::I32 }
}

/// Uploads pixels, `[count, PIXELS]`, and labels, `[count]`.
///
/// The pixels are uploaded as one dimension, because a tensor with several is copied row by row.
fn uploaded(pixels: Vec<u8>, labels: Vec<u8>, device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
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
