//! Layer normalisation over the rows of a matrix (Ba et al. 2016, arXiv 1607.06450), and RMS normalisation
//! (Zhang and Sennrich 2019, arXiv 1910.07467).

use crate::{
    parallel::{self, Room},
    simd::{multiversion, sum, sum_pairs},
};
use std::ops::Range;

/// Rows per part of the work.
const ROWS: usize = 64;

/// Settings of the layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    /// Added to the variance, or to the mean square.
    pub epsilon: f32,
    /// Whether the mean is subtracted, which is layer normalisation; otherwise RMS normalisation.
    pub centred: bool,
}

impl LayerNorm {
    /// Normalises every row of `x`, with the factors `gamma` and then the summands `beta`, which may be empty.
    ///
    /// Returns the values, and the statistics for [`backward`](Self::backward).
    ///
    /// # Panics
    /// If `x` is not in whole rows, or `beta` has another length than `gamma`.
    pub fn forward(&self, [x, gamma, beta]: [&[f32]; 3]) -> (Vec<f32>, Vec<Statistics>) {
        let width = width(x, gamma, beta);
        let write = |(): &mut (), range: Range<usize>, to: Room, rows: Room<Statistics>, _: Room<()>| {
            normalise(*self, [&x[range.start * width..][..to.len()], gamma, beta], to, rows);
        };
        let rows = [x.len() / width.max(1), ROWS];
        // SAFETY: `normalise` writes all values.
        let (y, statistics, _) = unsafe { parallel::build_three(rows, [width, 1, 0], || (), write) };
        (y, statistics)
    }

    /// Gradients of `x`, `gamma` and `beta`, from that of the output. That of `beta` is empty without it.
    ///
    /// # Panics
    /// If `gradient` has another length than `x`, `statistics` is not of as many rows, or as [`forward`](Self::forward).
    pub fn backward(
        &self,
        [x, gamma, beta]: [&[f32]; 3],
        statistics: &[Statistics],
        gradient: &[f32],
    ) -> [Vec<f32>; 3] {
        let width = width(x, gamma, beta);
        assert_eq!([x.len(), statistics.len() * width], [gradient.len(); 2], "one length for all");
        let (part, sums) = (ROWS * width, width + beta.len());
        let mut all = vec![0.0; x.len().div_ceil(part.max(1)) * sums];
        let write = |[for_x]: [Room; 1]| {
            parallel::pairs((for_x, part), (&mut all, sums), |number, for_x, sums| {
                let range = number * part..number * part + for_x.len();
                let (x, gradient) = (&x[range.clone()], &gradient[range]);
                gradients(*self, [x, gamma, gradient], &statistics[number * ROWS..], for_x, sums);
            });
        };
        // SAFETY: `gradients` writes all values.
        let [for_x] = unsafe { parallel::written([x.len()], write) };
        let mut for_parameters = vec![0.0; sums];
        for part in all.chunks_exact(sums.max(1)) {
            for_parameters.iter_mut().zip(part).for_each(|(to, from)| *to += from);
        }
        let for_beta = for_parameters.split_off(width);
        [for_x, for_parameters, for_beta]
    }
}

/// Length of a row.
fn width(x: &[f32], gamma: &[f32], beta: &[f32]) -> usize {
    let width = gamma.len();
    assert!(x.is_empty() || x.len().checked_rem(width) == Some(0), "whole rows");
    assert!(beta.is_empty() || beta.len() == width, "beta is as long as gamma");
    width
}

/// Mean and 1 / standard deviation of a row; without centring, zero and 1 / root mean square.
#[derive(Clone, Copy, Debug)]
pub struct Statistics {
    pub(crate) mean: f32,
    pub(crate) scale: f32,
}

impl Statistics {
    #[inline(always)]
    pub(crate) fn new(row: &[f32], epsilon: f32, centred: bool) -> Self {
        let count = row.len() as f32;
        let mean = if centred { sum(row, row, |x, _| x) / count } else { 0.0 };
        let variance = sum(row, row, |x, _| (x - mean) * (x - mean)) / count;
        Self { mean, scale: 1.0 / (variance + epsilon).sqrt() }
    }
}

multiversion!(
    fn normalise(with: LayerNorm, inputs: [&[f32]; 3], to: Room<'_>, rows: Room<'_, Statistics>) {
        let (LayerNorm { epsilon, centred }, [x, gamma, beta]) = (with, inputs);
        let width = gamma.len().max(1);
        for ((x, to), row) in x.chunks_exact(width).zip(to.chunks_exact_mut(width)).zip(rows) {
            let Statistics { mean, scale } = *row.write(Statistics::new(x, epsilon, centred));
            if beta.is_empty() {
                for ((to, x), gamma) in to.iter_mut().zip(x).zip(gamma) {
                    to.write((x - mean) * scale * gamma);
                }
            } else {
                for (((to, x), gamma), beta) in to.iter_mut().zip(x).zip(gamma).zip(beta) {
                    to.write((x - mean) * scale * gamma + beta);
                }
            }
        }
    }
);

multiversion!(
    /// Gradients of `x`, and of gamma and beta in `sums`, from `x`, gamma and the gradient of the output.
    fn gradients(with: LayerNorm, from: [&[f32]; 3], rows: &[Statistics], for_x: Room<'_>, sums: &mut [f32]) {
        let [x, gamma, gradient] = from;
        let width = gamma.len().max(1);
        let (for_gamma, for_beta) = sums.split_at_mut(width.min(sums.len()));
        let inputs = x.chunks_exact(width).zip(gradient.chunks_exact(width)).zip(rows);
        for (((x, gradient), row), to) in inputs.zip(for_x.chunks_exact_mut(width)) {
            let Statistics { mean, scale } = *row;
            let [mut along, across] = sum_pairs(x, gradient, gamma, |x, gradient, gamma| {
                [gradient * gamma, gradient * gamma * (x - mean)]
            })
            .map(|sum| sum / width as f32);
            if !with.centred {
                along = 0.0;
            }
            let across = across * scale;
            let values = x.iter().zip(gradient).zip(gamma).zip(for_gamma.iter_mut());
            for ((((x, gradient), gamma), sum), to) in values.zip(to) {
                let normalised = (x - mean) * scale;
                to.write((gradient * gamma - along - normalised * across) * scale);
                *sum += gradient * normalised;
            }
            for (sum, gradient) in for_beta.iter_mut().zip(gradient) {
                *sum += gradient;
            }
        }
    }
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_close, everywhere, noise};

    #[test]
    fn nan_affects_its_row_in_rms_norm() {
        everywhere(|vectors| {
            let mut x = noise(4, 3 * 20);
            x[25] = f32::NAN;
            let norm = LayerNorm { epsilon: 1e-5, centred: false };
            let inputs = [&x[..], &[1.0; 20], &[]];
            let (output, rows) = norm.forward(inputs);
            for values in [output, norm.backward(inputs, &rows, &[1.0; 60])[0].clone()] {
                assert!((0..60).all(|at| values[at].is_nan() == (20..40).contains(&at)), "{vectors}");
            }
        });
    }

    /// Reference values from torch 2.15's `rms_norm` in float64.
    #[test]
    fn rms_norm_equals_pytorchs() {
        let norm = LayerNorm { epsilon: 0.1, centred: false };
        let inputs = [&[1.0, -2.0, 0.5, 3.0, 0.0, -1.0][..], &[0.5, -1.0, 2.0], &[]];
        let output = [0.3676073, 1.470429, 0.7352146, 0.8095306, 0.0, -1.079374];
        let gradient = [-0.09604155, -0.5431315, -1.702254, 0.9601714, -0.5396871, 2.963039];
        everywhere(|vectors| {
            let (ours, rows) = norm.forward(inputs);
            let [for_x, for_gamma, _] = norm.backward(inputs, &rows, &[1.0, 2.0, -1.0, 0.5, 1.0, 3.0]);
            assert_close(&ours, &output, vectors);
            assert_close(&for_x, &gradient, vectors);
            assert_close(&for_gamma, &[1.544745, -2.940858, -1.986669], vectors);
        });
    }
}
