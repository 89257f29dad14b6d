//! Pictures as tensors.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_ddp::data::{Channels, Image, ImageFormat};

/// Normalised pictures `[batch, channels, side, side]` and classes `[batch]`.
pub type ImageBatch = (Tensor<4>, Tensor<1, Int>);

/// Normalises pictures and copies them to a device.
#[derive(Clone, Debug)]
pub struct ImageBatcher {
    pub format: ImageFormat,
    pub normalisation: Channels,
}

impl Batcher<Image, ImageBatch> for ImageBatcher {
    fn batch(&self, images: Vec<Image>, device: &Device) -> ImageBatch {
        let ImageFormat { side, channels } = self.format;
        // Each of the 256 values, normalised.
        let tables: Vec<Vec<f32>> = (self.normalisation.mean.iter().zip(&self.normalisation.std))
            .map(|(mean, std)| {
                (0..256).map(|value| ((f64::from(value) / 255.0 - mean) / std) as f32).collect()
            })
            .collect();
        let mut values = Vec::with_capacity(images.len() * channels * side * side);
        for image in &images {
            for (channel, table) in tables.iter().enumerate() {
                let pixels = image.picture.pixels.iter().skip(channel).step_by(channels);
                values.extend(pixels.map(|pixel| table[usize::from(*pixel)]));
            }
        }
        let labels: Vec<i32> = images.iter().map(|image| image.label as i32).collect();
        let size = images.len();
        (
            Tensor::from_data(TensorData::new(values, [size, channels, side, side]), device),
            Tensor::from_data(TensorData::new(labels, [size]), device),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_ddp::data::Picture;

    #[test]
    fn channels_are_separated_and_normalised() {
        let picture = Picture { width: 1, height: 2, channels: 3, pixels: vec![0, 51, 255, 255, 0, 51] };
        let batcher = ImageBatcher {
            format: ImageFormat { side: 1, channels: 3 },
            normalisation: Channels { mean: vec![0.0, 0.2, 0.5], std: vec![1.0, 0.5, 0.25] },
        };
        // One side of two pixels: the batcher takes the side from the format.
        let square = Picture { height: 1, pixels: picture.pixels[..3].to_vec(), ..picture };
        let images = vec![Image { picture: square, label: 4, index: 0 }];
        let (pictures, labels) = batcher.batch(images, &Device::flex());
        assert_eq!(pictures.dims(), [1, 3, 1, 1]);
        assert_eq!(pictures.into_data().try_to_vec::<f32>().expect("f32"), [0.0, 0.0, 2.0]);
        assert_eq!(labels.into_data().convert::<i64>().try_to_vec::<i64>().expect("i64"), [4]);
    }
}
