//! Batches that a GPU makes: bytes are uploaded, or gathered from images that stay in its memory, and
//! normalised, moved and cast there.

use super::{MnistBatch, Normaliser, Sample};
use crate::{
    augment::Mover,
    data::{Images, MEAN, PIXELS, SIDE, STD},
};
use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use collective::precision::Precision;
use kernels::host_tensor::is_flex;
use std::sync::{Mutex, PoisonError};

/// What a data worker prepares of a batch.
pub enum HostBatch {
    /// Nothing is left to do: the device is the CPU.
    Ready(Box<MnistBatch>),
    /// To be uploaded.
    Bytes { pixels: Vec<u8>, labels: Vec<i32>, movements: Vec<f32> },
    /// Positions in images that are on the device.
    Rows { rows: Vec<i32>, movements: Vec<f32> },
}

/// Prepares [`HostBatch`]es.
pub struct HostBatcher {
    pub precision: Precision,
    /// Whether the images are on the device.
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
            return HostBatch::Ready(Box::new(Normaliser(self.precision).batch(samples, device)));
        }
        let mut pixels = Vec::with_capacity(samples.len() * PIXELS);
        samples.iter().for_each(|sample| pixels.extend_from_slice(sample.images.image(sample.index)));
        let labels = samples.iter().map(|sample| i32::from(sample.images.label(sample.index))).collect();
        HostBatch::Bytes { pixels, labels, movements: movements() }
    }
}

/// Whether batches are better made on `device` than on the host.
fn computes_on_bytes(device: &Device) -> bool {
    !is_flex(device) && device.supports_dtype(DType::U8)
}

/// Makes [`MnistBatch`]es of [`HostBatch`]es.
pub struct DeviceBatcher {
    images: Images,
    precision: Precision,
    on_device: Mutex<Option<OnDevice>>,
}

/// What stays on a device from batch to batch.
struct OnDevice {
    device: Device,
    /// All pixels, `[images, PIXELS]`, and labels, `[images]`.
    images: Option<(Tensor<2, Int>, Tensor<1, Int>)>,
    mover: Option<Mover>,
}

impl DeviceBatcher {
    /// For batches of `images`, of the type that the network computes with.
    pub fn new(images: Images, precision: Precision) -> Self {
        Self { images, precision, on_device: Mutex::new(None) }
    }

    /// The batch on `device`.
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
        // The operations of `data::normalise`, in its order.
        let images = pixels.div_scalar(255.0).sub_scalar(MEAN).div_scalar(STD);
        let images = images.cast(self.precision.dtype()).reshape([count, 1, SIDE, SIDE]);
        // Both belong to the graph where the device has one.
        match device.is_autodiff() {
            true => MnistBatch { images: Tensor::from_inner(images), labels: Tensor::from_inner(labels) },
            false => MnistBatch { images, labels },
        }
    }

    /// With what stays on `device`; only the last device is remembered.
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

/// The type of bytes on a device.
fn byte(device: &Device) -> DType {
    if device.supports_dtype(DType::U8) { DType::U8 } else { DType::I32 }
}

/// Pixels `[count, PIXELS]` and labels `[count]` on a device. A tensor of one dimension is copied in one piece,
/// one of several row by row.
fn uploaded(pixels: Vec<u8>, labels: Vec<i32>, device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    let (device, count) = (inner(device), labels.len());
    let pixels = TensorData::new(pixels, [count * PIXELS]);
    let pixels = Tensor::<1, Int>::from_data(pixels, (&device, byte(&device)));
    let labels = Tensor::from_data(TensorData::new(labels, [count]), (&device, DType::I32));
    (pixels.reshape([count, PIXELS]), labels)
}

/// All images on a device.
fn resident(images: &Images, device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    uploaded(
        images.pixels().to_vec(),
        images.labels().iter().map(|label| i32::from(*label)).collect(),
        device,
    )
}

/// Bytes that [`DeviceBatcher`] keeps on `device` for images that stay there.
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
        let sample = |index| Sample { images: images.clone(), index, movement: None };
        let moved = |sample: Sample| match augment {
            Some(augment) => sample.moved(augment, 5, 2),
            None => sample,
        };
        [11, 3, 3, 29, 0].map(|index| moved(sample(index))).into()
    }

    /// As a worker prepares it for a GPU.
    fn bytes(samples: &[Sample]) -> HostBatch {
        let pixels = samples.iter().flat_map(|sample| sample.images.image(sample.index)).copied().collect();
        let labels = samples.iter().map(|sample| i32::from(sample.images.label(sample.index))).collect();
        HostBatch::Bytes { pixels, labels, movements: Vec::new() }
    }

    #[test]
    fn bytes_become_the_batch_that_the_table_gives() {
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
