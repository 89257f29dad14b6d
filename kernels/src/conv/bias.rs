//! Addition of a bias to each channel, and its gradient.

use crate::{
    parallel,
    simd::{multiversion, sum},
};

/// Adds its channel's bias to every plane of `images`, whose planes have `plane` values.
pub fn add_bias(images: &mut [f32], bias: &[f32], plane: usize) {
    parallel::parts(images, bias.len() * plane, |_, images| finish(images, bias, plane, false));
}

/// Sum of each channel's values over all images, `[batch, channels, plane]`.
pub fn channel_sums(images: &[f32], channels: usize, plane: usize) -> Vec<f32> {
    let mut sums = vec![0.0; channels];
    parallel::parts(&mut sums, channels.div_ceil(8), |first, sums| {
        add_sums(images, channels, plane, first, sums)
    });
    sums
}

multiversion!(
    /// Adds the bias, which may be empty, and applies the ReLU.
    pub(super) fn finish(images: &mut [f32], bias: &[f32], plane: usize, relu: bool) {
        if bias.is_empty() && !relu {
            return;
        }
        let bias = if bias.is_empty() { &[0.0] } else { bias };
        for (plane, bias) in images.chunks_exact_mut(plane.max(1)).zip(bias.iter().cycle()) {
            for value in plane {
                let sum = *value + bias;
                *value = if relu && sum <= 0.0 { 0.0 } else { sum };
            }
        }
    }
);

multiversion!(
    /// Adds the sums of the channels from `first` on over `images`, `[batch, channels, plane]`, to `sums`.
    pub(super) fn add_sums(images: &[f32], channels: usize, plane: usize, first: usize, sums: &mut [f32]) {
        for image in images.chunks_exact((channels * plane).max(1)) {
            for (at, total) in sums.iter_mut().enumerate() {
                let values = &image[(first + at) * plane..][..plane];
                *total += sum(values, values, |value, _| value);
            }
        }
    }
);
