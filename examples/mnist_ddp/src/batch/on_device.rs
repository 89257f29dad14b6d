//! Batches that a GPU computes from uploaded bytes, or from images that stay in its memory.
//!
//! Normalisation and augmentation run on the device.

use super::{MnistBatch, Normaliser, Sample};
use crate::{
    augment::Mover,
    data::{Images, MEAN, PIXELS, SIDE, STD},
};
use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use kernels::host_tensor::is_flex;
use std::sync::{Mutex, PoisonError};

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
        let movements = || {
            let mut parameters = Vec::new();
            let drawn = samples.iter().filter_map(|sample| sample.movement.as_ref());
            drawn.for_each(|movement| movement.extend_parameters(&mut parameters));
            parameters
        };
        if self.resident {
            let rows = samples.iter().map(|sample| sample.index as i32).collect();
            return HostBatch::Rows { rows, movements: movements() };
        }
        if !computes_on_bytes(device) {
            return HostBatch::Ready(Box::new(Normaliser.batch(samples, device)));
        }
        let mut pixels = Vec::with_capacity(samples.len() * PIXELS);
        samples.iter().for_each(|sample| pixels.extend_from_slice(sample.images.image(sample.index)));
        let labels = samples.iter().map(|sample| i32::from(sample.images.label(sample.index))).collect();
        HostBatch::Bytes { pixels, labels, movements: movements() }
    }
}

/// Whether batches are computed on `device` rather than on the host.
fn computes_on_bytes(device: &Device) -> bool {
    !is_flex(device) && device.supports_dtype(DType::U8)
}

/// Computes [`MnistBatch`]es from [`HostBatch`]es.
pub struct DeviceBatcher {
    images: Images,
    on_device: Mutex<Option<OnDevice>>,
}

/// Tensors that stay on a device between batches.
struct OnDevice {
    device: Device,
    /// Pixels of all images, `[images, PIXELS]`, and labels, `[images]`.
    images: Option<(Tensor<2, Int>, Tensor<1, Int>)>,
    mover: Option<Mover>,
}

impl DeviceBatcher {
    /// A batcher for `images`.
    pub fn new(images: Images) -> Self {
        Self { images, on_device: Mutex::new(None) }
    }

    /// Computes the batch on `device`.
    pub fn finish(&self, batch: HostBatch, device: &Device) -> MnistBatch {
        let (pixels, labels, movements) = match batch {
            HostBatch::Ready(batch) => return *batch,
            HostBatch::Bytes { pixels, labels, movements } => {
                let (pixels, labels) = uploaded(pixels, labels, device);
                (pixels, labels, movements)
            }
            HostBatch::Rows { rows, movements } => {
                let count = rows.len();
                let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [count]), &inner(device));
                let (pixels, labels) = self.with(device, |here| {
                    let (pixels, labels) = here.images.get_or_insert_with(|| resident(&self.images, device));
                    (pixels.clone().select(0, rows.clone()), labels.clone().select(0, rows))
                });
                (pixels, labels, movements)
            }
        };
        let count = labels.dims()[0];
        let mut pixels = pixels.cast(FloatDType::F32);
        if !movements.is_empty() {
            let each = movements.len() / count;
            let movements = Tensor::from_data(TensorData::new(movements, [count, each]), &inner(device));
            pixels = self.with(device, |here| {
                here.mover.get_or_insert_with(|| Mover::new(&inner(device))).moved(pixels, movements)
            });
        }
        // The operations of `data::normalise`, in the same order.
        let images = pixels.div_scalar(255.0).sub_scalar(MEAN).div_scalar(STD);
        let images = images.reshape([count, 1, SIDE, SIDE]);
        // On a device with autodiff, tensors belong to the graph.
        match device.is_autodiff() {
            true => MnistBatch { images: Tensor::from_inner(images), labels: Tensor::from_inner(labels) },
            false => MnistBatch { images, labels },
        }
    }

    /// Calls `act` with the tensors on `device`. Only those of the last device are kept.
    fn with<R>(&self, device: &Device, act: impl FnOnce(&mut OnDevice) -> R) -> R {
        let mut on_device = self.on_device.lock().unwrap_or_else(PoisonError::into_inner);
        let device = inner(device);
        let here = match &mut *on_device {
            Some(here) if here.device == device => here,
            other => other.insert(OnDevice { device, images: None, mover: None }),
        };
        act(here)
    }
}

/// `device` without autodiff.
fn inner(device: &Device) -> Device {
    device.clone().without_autodiff()
}

/// The integer type for bytes on a device.
fn byte(device: &Device) -> DType {
    if device.supports_dtype(DType::U8) { DType::U8 } else { DType::I32 }
}

/// Uploads pixels, `[count, PIXELS]`, and labels, `[count]`.
///
/// The pixels are uploaded as one dimension, because a tensor with several is copied row by row.
fn uploaded(pixels: Vec<u8>, labels: Vec<i32>, device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    let (device, count) = (inner(device), labels.len());
    let pixels = TensorData::new(pixels, [count * PIXELS]);
    let pixels = Tensor::<1, Int>::from_data(pixels, (&device, byte(&device)));
    let labels = Tensor::from_data(TensorData::new(labels, [count]), (&device, DType::I32));
    (pixels.reshape([count, PIXELS]), labels)
}

/// Uploads all images.
fn resident(images: &Images, device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    uploaded(
        images.pixels().to_vec(),
        images.labels().iter().map(|label| i32::from(*label)).collect(),
        device,
    )
}

/// Bytes of device memory for images that stay on `device`.
pub fn resident_bytes(images: &Images, device: &Device) -> usize {
    let labels = size_of::<i32>();
    images.len() * (PIXELS * if byte(device) == DType::U8 { 1 } else { size_of::<i32>() } + labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{augment::Augment, data};

    fn batch(
        host: &HostBatcher,
        samples: Vec<Sample>,
        images: &Images,
        device: &Device,
    ) -> (Vec<f32>, Vec<i32>) {
        let finisher = DeviceBatcher::new(images.clone());
        let batch = finisher.finish(host.batch(samples, device), device);
        assert_eq!(batch.images.dims()[1..], [1, SIDE, SIDE]);
        assert_eq!(batch.images.device().is_autodiff(), device.is_autodiff());
        let images = batch.images.into_data().try_into_vec::<f32>().expect("f32");
        (images, batch.labels.into_data().convert::<i32>().try_into_vec().expect("i32"))
    }

    fn samples(images: &Images, augment: Option<Augment>) -> Vec<Sample> {
        let sample = |index| Sample { images: images.clone(), index, movement: None };
        let moved = |sample: Sample| match augment {
            Some(augment) => sample.moved(augment, 5, 2),
            None => sample,
        };
        [11, 3, 3, 29, 0].map(|index| moved(sample(index))).into()
    }

    /// The batch that a data worker prepares for a GPU.
    fn bytes(samples: &[Sample]) -> HostBatch {
        let pixels = samples.iter().flat_map(|sample| sample.images.image(sample.index)).copied().collect();
        let labels = samples.iter().map(|sample| i32::from(sample.images.label(sample.index))).collect();
        HostBatch::Bytes { pixels, labels, movements: Vec::new() }
    }

    #[test]
    fn bytes_give_the_same_batch_as_the_host() {
        let images = data::Dataset::subset([Some(30), Some(1)]).expect("the subset").train;
        for device in [Device::flex(), Device::flex().autodiff()] {
            let host = HostBatcher { resident: false };
            let expected = batch(&host, samples(&images, None), &images, &device);
            let finisher = DeviceBatcher::new(images.clone());
            let made = finisher.finish(bytes(&samples(&images, None)), &device);
            assert_eq!(made.images.into_data().try_into_vec::<f32>().expect("f32"), expected.0);
            assert_eq!(
                made.labels.into_data().convert::<i32>().try_into_vec::<i32>().expect("i32"),
                expected.1
            );
        }
    }

    #[test]
    fn resident_images_give_the_same_batches() {
        let images = data::Dataset::subset([Some(30), Some(1)]).expect("the subset").train;
        let device = Device::flex().autodiff();
        let [host, resident] = [false, true].map(|resident| HostBatcher { resident });
        let expected = batch(&host, samples(&images, None), &images, &device);
        assert_eq!(batch(&resident, samples(&images, None), &images, &device), expected);

        let augment: Augment = "shift,rotate,elastic".parse().expect("changes");
        let expected = batch(&host, samples(&images, Some(augment)), &images, &device);
        let moved = batch(&resident, samples(&images, Some(augment)), &images, &device);
        let worst = moved.0.iter().zip(&expected.0).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 1e-5 && moved.1 == expected.1, "{worst}");
    }
}
