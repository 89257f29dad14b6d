//! Addition of a bias to each channel, and its gradient.

use crate::{
    parallel,
    simd::{arch, sum},
};
use pulp::{Simd, WithSimd};

/// Adds its channel's bias to every plane of `images`, whose planes have `plane` values.
pub fn add_bias(images: &mut [f32], bias: &[f32], plane: usize) {
    parallel::parts(images, bias.len() * plane, |_, image| arch().dispatch(Add { image, bias, plane }));
}

/// Sum of each channel's values over all images, `[batch, channels, plane]`.
pub fn channel_sums(images: &[f32], channels: usize, plane: usize) -> Vec<f32> {
    let mut sums = vec![0.0; channels];
    parallel::parts(&mut sums, channels.div_ceil(8), |first, sums| {
        arch().dispatch(Sums { images, channels, plane, first, sums });
    });
    sums
}

struct Add<'a> {
    image: &'a mut [f32],
    bias: &'a [f32],
    plane: usize,
}

impl WithSimd for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let channels = self.bias.iter().cycle();
        for (plane, bias) in self.image.chunks_exact_mut(self.plane.max(1)).zip(channels) {
            plane.iter_mut().for_each(|value| *value += bias);
        }
    }
}

struct Sums<'a> {
    images: &'a [f32],
    channels: usize,
    plane: usize,
    first: usize,
    sums: &'a mut [f32],
}

impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { images, channels, plane, first, sums } = self;
        for image in images.chunks_exact((channels * plane).max(1)) {
            for (at, total) in sums.iter_mut().enumerate() {
                let values = &image[(first + at) * plane..][..plane];
                *total += sum(plane, |at| values[at]);
            }
        }
    }
}
