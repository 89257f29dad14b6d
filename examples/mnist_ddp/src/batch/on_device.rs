//! Batching on a GPU.
//!
//! Bytes are uploaded or gathered from resident images, then transformed, normalised and cast.

use super::{MnistBatch, Normaliser, Sample};
use crate::{
    augment::DeviceTransform,
    data::{Images, MEAN, PIXELS, SIDE, STD},
};
use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use collective::precision::Precision;
use kernels::host_tensor::is_flex;
use std::sync::{Mutex, PoisonError};

/// Part of a batch that a data loader thread prepares.
pub enum HostBatch {
    /// Complete batch, for the CPU.
    Ready(Box<MnistBatch>),
    /// Bytes to upload, with transform parameters.
    Bytes { pixels: Vec<u8>, labels: Vec<i32>, transforms: Vec<f32> },
    /// Indices of images on the device, with transform parameters.
    Rows { rows: Vec<i32>, transforms: Vec<f32> },
}

/// Batcher of [`HostBatch`]es.
pub struct HostBatcher {
    pub precision: Precision,
    /// Whether all images are in device memory.
    pub resident: bool,
}

impl Batcher<Sample, HostBatch> for HostBatcher {
    fn batch(&self, samples: Vec<Sample>, device: &Device) -> HostBatch {
        let transforms = || {
            let mut parameters = Vec::new();
            let drawn = samples.iter().filter_map(|sample| sample.transform.as_ref());
            drawn.for_each(|transform| transform.extend_parameters(&mut parameters));
            parameters
        };
        if self.resident {
            let rows = samples.iter().map(|sample| sample.index as i32).collect();
            return HostBatch::Rows { rows, transforms: transforms() };
        }
        if !computes_on_bytes(device) {
            return HostBatch::Ready(Box::new(Normaliser(self.precision).batch(samples, device)));
        }
        let mut pixels = Vec::with_capacity(samples.len() * PIXELS);
        samples.iter().for_each(|sample| pixels.extend_from_slice(sample.images.image(sample.index)));
        let labels = samples.iter().map(|sample| i32::from(sample.images.label(sample.index))).collect();
        HostBatch::Bytes { pixels, labels, transforms: transforms() }
    }
}

/// Whether batches are normalised on `device` instead of the host.
fn computes_on_bytes(device: &Device) -> bool {
    !is_flex(device) && device.supports_dtype(DType::U8)
}

/// Converter of [`HostBatch`]es to [`MnistBatch`]es.
pub struct DeviceBatcher {
    images: Images,
    precision: Precision,
    on_device: Mutex<Option<OnDevice>>,
}

/// Tensors kept on a device between batches.
struct OnDevice {
    device: Device,
    /// All pixels `[images, PIXELS]` and labels `[images]`.
    images: Option<(Tensor<2, Int>, Tensor<1, Int>)>,
    device_transform: Option<DeviceTransform>,
}

impl DeviceBatcher {
    /// Creates a converter for batches of `images` in `precision`.
    pub fn new(images: Images, precision: Precision) -> Self {
        Self { images, precision, on_device: Mutex::new(None) }
    }

    /// Completes a batch on `device`.
    pub fn finish(&self, batch: HostBatch, device: &Device) -> MnistBatch {
        let (pixels, labels, transforms) = match batch {
            HostBatch::Ready(batch) => return *batch,
            HostBatch::Bytes { pixels, labels, transforms } => {
                let (pixels, labels) = uploaded(pixels, labels, device);
                (pixels, labels, transforms)
            }
            HostBatch::Rows { rows, transforms } => {
                let count = rows.len();
                let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [count]), &inner(device));
                let (pixels, labels) = self.with(device, |here| {
                    let (pixels, labels) = here.images.get_or_insert_with(|| resident(&self.images, device));
                    (pixels.clone().select(0, rows.clone()), labels.clone().select(0, rows))
                });
                (pixels, labels, transforms)
            }
        };
        let count = labels.dims()[0];
        let mut pixels = pixels.cast(FloatDType::F32);
        if !transforms.is_empty() {
            let each = transforms.len() / count;
            let transforms = Tensor::from_data(TensorData::new(transforms, [count, each]), &inner(device));
            pixels = self.with(device, |here| {
                here.device_transform
                    .get_or_insert_with(|| DeviceTransform::new(&inner(device)))
                    .apply(pixels, transforms)
            });
        }
        // The same operations as `data::normalise`, in the same order.
        let images = pixels.div_scalar(255.0).sub_scalar(MEAN).div_scalar(STD);
        let images = images.cast(self.precision.dtype()).reshape([count, 1, SIDE, SIDE]);
        // On an autodiff device, inputs must be autodiff tensors.
        match device.is_autodiff() {
            true => MnistBatch { images: Tensor::from_inner(images), labels: Tensor::from_inner(labels) },
            false => MnistBatch { images, labels },
        }
    }

    /// Calls `act` with the tensors kept on `device`. Tensors of other devices are dropped.
    fn with<R>(&self, device: &Device, act: impl FnOnce(&mut OnDevice) -> R) -> R {
        let mut on_device = self.on_device.lock().unwrap_or_else(PoisonError::into_inner);
        let device = inner(device);
        let here = match &mut *on_device {
            Some(here) if here.device == device => here,
            other => other.insert(OnDevice { device, images: None, device_transform: None }),
        };
        act(here)
    }
}

/// Returns `device` without autodiff.
fn inner(device: &Device) -> Device {
    device.clone().without_autodiff()
}

/// Returns the integer type that stores bytes on a device.
fn byte(device: &Device) -> DType {
    if device.supports_dtype(DType::U8) { DType::U8 } else { DType::I32 }
}

/// Uploads pixels `[count, PIXELS]` and labels `[count]` to a device.
///
/// Pixels are uploaded with one dimension, because Burn copies tensors of more dimensions row by row.
fn uploaded(pixels: Vec<u8>, labels: Vec<i32>, device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    let (device, count) = (inner(device), labels.len());
    let pixels = TensorData::new(pixels, [count * PIXELS]);
    let pixels = Tensor::<1, Int>::from_data(pixels, (&device, byte(&device)));
    let labels = Tensor::from_data(TensorData::new(labels, [count]), (&device, DType::I32));
    (pixels.reshape([count, PIXELS]), labels)
}

/// Uploads all images to a device.
fn resident(images: &Images, device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    uploaded(
        images.pixels().to_vec(),
        images.labels().iter().map(|label| i32::from(*label)).collect(),
        device,
    )
}

/// Returns the device memory in bytes that resident images take.
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
        let finisher = DeviceBatcher::new(images.clone(), host.precision);
        let batch = finisher.finish(host.batch(samples, device), device);
        assert_eq!(batch.images.dims()[1..], [1, SIDE, SIDE]);
        assert_eq!(batch.images.device().is_autodiff(), device.is_autodiff());
        let images = batch.images.into_data().try_into_vec::<f32>().expect("f32");
        (images, batch.labels.into_data().convert::<i32>().try_into_vec().expect("i32"))
    }

    fn samples(images: &Images, augment: Option<Augment>) -> Vec<Sample> {
        let sample = |index| Sample { images: images.clone(), index, transform: None };
        let moved = |sample: Sample| match augment {
            Some(augment) => sample.augmented(augment, 5, 2),
            None => sample,
        };
        [11, 3, 3, 29, 0].map(|index| moved(sample(index))).into()
    }

    /// Builds the batch that a data loader thread prepares for a GPU.
    fn bytes(samples: &[Sample]) -> HostBatch {
        let pixels = samples.iter().flat_map(|sample| sample.images.image(sample.index)).copied().collect();
        let labels = samples.iter().map(|sample| i32::from(sample.images.label(sample.index))).collect();
        HostBatch::Bytes { pixels, labels, transforms: Vec::new() }
    }

    #[test]
    fn batches_of_bytes_equal_those_of_the_host() {
        let images = data::Dataset::digits(30, 0, 1).train;
        for device in [Device::flex(), Device::flex().autodiff()] {
            let host = HostBatcher { precision: Precision::F32, resident: false };
            let expected = batch(&host, samples(&images, None), &images, &device);
            let finisher = DeviceBatcher::new(images.clone(), Precision::F32);
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
        let images = data::Dataset::digits(30, 0, 1).train;
        let device = Device::flex().autodiff();
        let [host, resident] =
            [false, true].map(|resident| HostBatcher { precision: Precision::F32, resident });
        let expected = batch(&host, samples(&images, None), &images, &device);
        assert_eq!(batch(&resident, samples(&images, None), &images, &device), expected);

        let augment: Augment = "shift,rotate,elastic".parse().expect("changes");
        let expected = batch(&host, samples(&images, Some(augment)), &images, &device);
        let moved = batch(&resident, samples(&images, Some(augment)), &images, &device);
        let worst = moved.0.iter().zip(&expected.0).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 1e-5 && moved.1 == expected.1, "{worst}");
    }
}
