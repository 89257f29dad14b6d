//! Batches of the host and of a device.

use super::augment::moved_on_host;
use burn::data::{dataloader::batcher::Batcher, dataset::Dataset as _};
use burn::tensor::Device;
use mnist::{
    augment::Augment,
    batch::{ImageBatcher, ImageDataset, MnistBatch, Sample},
    data::{Dataset, Images, SIDE, normalise, normalised},
};

const SAMPLES: [usize; 5] = [11, 3, 3, 29, 0];

fn subset() -> Images {
    Dataset::subset([Some(30), Some(1)]).expect("the subset").train
}

fn batch(batcher: &ImageBatcher, samples: Vec<Sample>, device: &Device) -> (Vec<f32>, Vec<i32>) {
    let batch: MnistBatch = batcher.batch(samples, device);
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

/// The labels of the samples.
fn labels(images: &Images) -> Vec<i32> {
    SAMPLES.map(|index| i32::from(images.labels[index])).into()
}

#[test]
fn uploaded_and_resident_images_are_normalised() {
    let images = subset();
    let expected: Vec<f32> = SAMPLES.iter().flat_map(|index| normalised(images.image(*index))).collect();
    for device in [Device::flex(), Device::flex().autodiff()] {
        for batcher in [false, true].map(ImageBatcher::new) {
            let made = batch(&batcher, samples(&images, None), &device);
            assert_eq!(made, (expected.clone(), labels(&images)));
        }
    }
}

#[test]
fn uploaded_and_resident_images_are_augmented() {
    let images = subset();
    let device = Device::flex().autodiff();
    let augment: Augment = "shift,rotate,elastic".parse().expect("changes");
    let expected: Vec<f32> = SAMPLES
        .iter()
        .flat_map(|index| moved_on_host(&augment.draw(5, 2, *index), images.image(*index)).map(normalise))
        .collect();
    let [uploaded, resident] = [false, true]
        .map(|resident| batch(&ImageBatcher::new(resident), samples(&images, Some(augment)), &device));
    let worst = uploaded.0.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= 1e-5 && uploaded.1 == labels(&images), "{worst}");
    assert_eq!(resident, uploaded);
}
