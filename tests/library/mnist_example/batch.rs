//! Batches of the host and of a device.

use burn::data::{dataloader::batcher::Batcher, dataset::Dataset as _};
use burn::tensor::Device;
use mnist::{
    augment::Augment,
    batch::{DeviceBatcher, HostBatch, HostBatcher, ImageDataset, Sample},
    data::{Dataset, Images, SIDE},
};

const SAMPLES: [usize; 5] = [11, 3, 3, 29, 0];

fn batch(host: &HostBatcher, samples: Vec<Sample>, images: &Images, device: &Device) -> (Vec<f32>, Vec<i32>) {
    let finisher = DeviceBatcher::new(images.clone());
    let batch = finisher.finish(host.batch(samples, device), device);
    assert_eq!(batch.images.dims()[1..], [1, SIDE, SIDE]);
    assert_eq!(batch.images.device().is_autodiff(), device.is_autodiff());
    let images = batch.images.into_data().try_into_vec::<f32>().expect("f32");
    (images, batch.labels.into_data().convert::<i32>().try_into_vec().expect("i32"))
}

fn samples(images: &Images, augment: Option<Augment>) -> Vec<Sample> {
    let sample = |index| ImageDataset(images.clone()).get(index).expect("an image");
    let moved = |sample: Sample| match augment {
        Some(augment) => sample.moved(augment, 5, 2),
        None => sample,
    };
    SAMPLES.map(|index| moved(sample(index))).into()
}

/// The batch that a data worker prepares for a GPU.
fn bytes(images: &Images) -> HostBatch {
    let pixels = SAMPLES.iter().flat_map(|index| images.image(*index)).copied().collect();
    let labels = SAMPLES.iter().map(|index| i32::from(images.labels[*index])).collect();
    HostBatch::Bytes { pixels, labels, movements: Vec::new() }
}

#[test]
fn bytes_give_the_same_batch_as_the_host() {
    let images = Dataset::subset([Some(30), Some(1)]).expect("the subset").train;
    for device in [Device::flex(), Device::flex().autodiff()] {
        let host = HostBatcher { resident: false };
        let expected = batch(&host, samples(&images, None), &images, &device);
        let finisher = DeviceBatcher::new(images.clone());
        let made = finisher.finish(bytes(&images), &device);
        assert_eq!(made.images.into_data().try_into_vec::<f32>().expect("f32"), expected.0);
        assert_eq!(made.labels.into_data().convert::<i32>().try_into_vec::<i32>().expect("i32"), expected.1);
    }
}

#[test]
fn resident_images_give_the_same_batches() {
    let images = Dataset::subset([Some(30), Some(1)]).expect("the subset").train;
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
