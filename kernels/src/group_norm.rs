//! Group normalisation (Wu and He 2018, arXiv 1803.08494).

use crate::{
    layer_norm::Statistics,
    parallel::{self, Room},
    simd::{multiversion, sum_pairs},
};
use std::ops::Range;

/// Values per part of the work.
const PART: usize = 1 << 14;

/// Settings of the layer, for images `[batch, channels, positions]`.
#[derive(Clone, Copy, Debug)]
pub struct GroupNorm {
    /// Groups of adjacent channels that are normalised together.
    pub groups: usize,
    /// Channels, a multiple of `groups`.
    pub channels: usize,
    /// Positions of a channel.
    pub positions: usize,
    /// Added to the variance.
    pub epsilon: f32,
}

impl GroupNorm {
    /// Normalises the groups of every image of `x`, with the channels' factors `gamma` and then their summands `beta`, which
    /// may be empty.
    ///
    /// Returns the values, and the statistics for [`backward`](Self::backward).
    ///
    /// # Panics
    /// If the slices or the number of groups do not fit the shape.
    pub fn forward(&self, [x, gamma, beta]: [&[f32]; 3]) -> (Vec<f32>, Vec<Statistics>) {
        let (image, images) = self.images([x, gamma, beta]);
        let write = |(): &mut (), range: Range<usize>, y: Room, groups: Room<Statistics>, _: Room<()>| {
            normalise(*self, [&x[range.start * image..range.end * image], gamma, beta], y, groups);
        };
        // SAFETY: `normalise` writes all values.
        let (y, statistics, _) =
            unsafe { parallel::build_three(images, [image, self.groups, 0], || (), write) };
        (y, statistics)
    }

    /// Gradients of `x`, `gamma` and `beta`, from that of the output, also without gamma or beta.
    ///
    /// # Panics
    /// If `gradient` has another length than `x`, `statistics` is not of as many groups, or as [`forward`](Self::forward).
    pub fn backward(
        &self,
        [x, gamma, beta]: [&[f32]; 3],
        statistics: &[Statistics],
        gradient: &[f32],
    ) -> [Vec<f32>; 3] {
        let (image, images) = self.images([x, gamma, beta]);
        assert_eq!(x.len(), gradient.len(), "one length for both");
        assert_eq!(statistics.len(), images[0] * self.groups, "statistics of each group");
        let write = |(): &mut (), range: Range<usize>, for_x: Room, sums: Room<[f32; 2]>, _: Room<()>| {
            let [x, gradient] = [x, gradient].map(|of| &of[range.start * image..range.end * image]);
            let statistics = &statistics[range.start * self.groups..];
            gradients(*self, [x, gamma, gradient], statistics, for_x, sums);
        };
        // SAFETY: `gradients` writes all values.
        let (for_x, sums, _) =
            unsafe { parallel::build_three(images, [image, self.channels, 0], || (), write) };
        let [mut for_gamma, mut for_beta] = [(); 2].map(|()| vec![0.0; self.channels]);
        for (at, sums) in sums.iter().enumerate() {
            for_beta[at % self.channels] += sums[0];
            for_gamma[at % self.channels] += sums[1];
        }
        [for_x, for_gamma, for_beta]
    }

    /// Length of an image, and numbers of images and of those in a part of the work.
    fn images(&self, [x, gamma, beta]: [&[f32]; 3]) -> (usize, [usize; 2]) {
        let Self { groups, channels, positions, .. } = *self;
        assert!(groups > 0 && channels.is_multiple_of(groups), "channels are a multiple of groups");
        for parameter in [gamma, beta] {
            assert!(parameter.is_empty() || parameter.len() == channels, "one value for each channel");
        }
        let image = parallel::values(&[channels, positions]).expect("an image that fits in memory");
        assert!(x.is_empty() || x.len().checked_rem(image) == Some(0), "whole images");
        let image_or_one = image.max(1);
        (image, [x.len() / image_or_one, (PART / image_or_one).max(1)])
    }

    /// Channels and values of a group.
    fn group(&self) -> [usize; 2] {
        let channels = self.channels / self.groups;
        [channels, channels * self.positions]
    }
}

/// Value of a channel; `without` if `values` is empty.
#[inline(always)]
fn channel_value(values: &[f32], channel: usize, without: f32) -> f32 {
    if values.is_empty() { without } else { values[channel] }
}

multiversion!(
    fn normalise(with: GroupNorm, inputs: [&[f32]; 3], y: Room<'_>, all: Room<'_, Statistics>) {
        let (GroupNorm { groups, positions, .. }, [x, gamma, beta]) = (with, inputs);
        let [channels, len] = with.group();
        let values = x.chunks_exact(len).zip(y.chunks_exact_mut(len));
        for (number, ((x, y), statistics)) in values.zip(all).enumerate() {
            let Statistics { mean, scale } = *statistics.write(Statistics::new(x, with.epsilon, true));
            for (at, (x, y)) in x.chunks_exact(positions).zip(y.chunks_exact_mut(positions)).enumerate() {
                let channel = number % groups * channels + at;
                let factor = scale * channel_value(gamma, channel, 1.0);
                let beta = channel_value(beta, channel, 0.0);
                for (x, y) in x.iter().zip(y) {
                    y.write((x - mean) * factor + beta);
                }
            }
        }
    }
);

multiversion!(
    /// Gradients of `x`, and of beta and gamma of each image in `sums`, from `x`, gamma and the gradient of the output.
    fn gradients(
        with: GroupNorm,
        from: [&[f32]; 3],
        statistics: &[Statistics],
        for_x: Room<'_>,
        sums: Room<'_, [f32; 2]>,
    ) {
        let (GroupNorm { groups, positions, .. }, [x, gammas, gradient]) = (with, from);
        let [channels, len] = with.group();
        let of_groups = x.chunks_exact(len).zip(gradient.chunks_exact(len)).zip(statistics);
        let results = for_x.chunks_exact_mut(len).zip(sums.chunks_exact_mut(channels));
        for (number, (((x, gradient), statistics), (for_x, sums))) in of_groups.zip(results).enumerate() {
            let Statistics { mean, scale } = *statistics;
            let gamma = |at| channel_value(gammas, number % groups * channels + at, 1.0);
            let (mut along, mut across) = (0.0, 0.0);
            for (at, sums) in sums.iter_mut().enumerate() {
                let [x, gradient] = [x, gradient].map(|of| &of[at * positions..][..positions]);
                let sums = sums.write(sum_pairs(x, gradient, x, |x, gradient, _| {
                    [gradient, gradient * (x - mean) * scale]
                }));
                along += sums[0] * gamma(at) / len as f32;
                across += sums[1] * gamma(at) / len as f32;
            }
            for at in 0..channels {
                let range = at * positions..(at + 1) * positions;
                let (gamma, of_channel) = (gamma(at), x[range.clone()].iter().zip(&gradient[range.clone()]));
                for ((x, gradient), to) in of_channel.zip(&mut for_x[range]) {
                    to.write((gradient * gamma - along - (x - mean) * scale * across) * scale);
                }
            }
        }
    }
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_close, everywhere, noise};

    #[test]
    fn empty_images_are_supported() {
        for (channels, positions) in [(4, 0), (0, 3)] {
            let norm = GroupNorm { groups: 2, channels, positions, epsilon: 1e-5 };
            let (output, statistics) = norm.forward([&[]; 3]);
            assert!(output.is_empty() && statistics.is_empty());
            let zeros = || vec![0.0; channels];
            assert_eq!(norm.backward([&[]; 3], &[], &[]), [Vec::new(), zeros(), zeros()]);
        }
    }

    #[test]
    fn nan_affects_its_group() {
        everywhere(|vectors| {
            let mut x = noise(5, 2 * 4 * 9);
            x[40] = f32::NAN;
            let norm = GroupNorm { groups: 2, channels: 4, positions: 9, epsilon: 1e-5 };
            let inputs = [&x[..], &[], &[]];
            let (output, statistics) = norm.forward(inputs);
            for values in [output, norm.backward(inputs, &statistics, &[1.0; 72])[0].clone()] {
                assert!((0..72).all(|at| values[at].is_nan() == (36..54).contains(&at)), "{vectors}");
            }
        });
    }

    /// Reference values from torch 2.15's `group_norm` in float64.
    #[test]
    fn values_and_gradients_equal_pytorchs() {
        let (gamma, beta) = ([0.5, -1.0, 2.0, 1.0], [0.1, 0.2, 0.3, 0.4]);
        let norm = GroupNorm { groups: 2, channels: 4, positions: 2, epsilon: 0.1 };
        let inputs = [&[1.0, -2.0, 0.5, 3.0, 0.0, -1.0, 2.0, 0.3][..], &gamma, &beta];
        let output = [0.203658, -0.6256062, 0.2691053, -1.113002, -0.2774927, -2.054393, 1.888154, 0.3777887];
        let gradient =
            [0.05940288, -0.1393988, 0.2566204, -0.1766246, -0.25904, 1.199211, 0.3782598, -1.31843];
        everywhere(|vectors| {
            let (ours, statistics) = norm.forward(inputs);
            let [for_x, for_gamma, for_beta] =
                norm.backward(inputs, &statistics, &[1.0, 2.0, -1.0, 0.5, 1.0, 3.0, -2.0, 0.1]);
            assert_close(&ours, &output, vectors);
            assert_close(&for_x, &gradient, vectors);
            assert_close(&for_gamma, &[-2.695109, 0.7256062, -3.820336, -2.978529], vectors);
            assert_close(&for_beta, &[3.0, -0.5, 4.0, -1.9], vectors);
        });
    }
}
