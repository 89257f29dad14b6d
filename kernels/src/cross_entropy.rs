//! Mean cross-entropy of classes, with label smoothing (Szegedy et al. 2016, arXiv 1512.00567).

use crate::{
    exp::exp,
    parallel::{self, Room},
    simd::{largest, multiversion, sum},
};
use std::{mem::MaybeUninit, ops::Range};

/// Logits per part of the work.
const PART: usize = 1 << 14;

/// Settings of the loss.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy {
    /// Number of classes.
    pub classes: usize,
    /// Share of the target that is spread over all classes, from 0 to 1.
    pub smoothing: f32,
}

/// Largest logit and 1 / sum of the softmax of each row, and the sum of the rows' weights.
#[derive(Clone, Debug)]
pub struct Saved(Vec<[f32; 2]>, f32);

/// Targets and their weights, which may be empty if all are 1. A target with weight 0 does not count.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// A class for each row of logits.
    pub classes: &'a [i64],
    /// Weight of each row.
    pub weights: &'a [f32],
}

impl Targets<'_> {
    fn part(&self, range: Range<usize>) -> Self {
        let weights = if self.weights.is_empty() { &[] } else { &self.weights[range.clone()] };
        Self { classes: &self.classes[range], weights }
    }

    #[inline(always)]
    fn weight(&self, row: usize) -> f32 {
        if self.weights.is_empty() { 1.0 } else { self.weights[row] }
    }
}

impl CrossEntropy {
    /// Weighted mean loss of `logits`, `[batch, classes]`, and values for [`backward`](Self::backward).
    ///
    /// A target that is not a class gives NaN, unless its weight is 0, as does a batch without weight.
    ///
    /// # Panics
    /// If the numbers of logits, targets and weights do not match.
    pub fn forward(&self, logits: &[f32], targets: Targets) -> (f32, Saved) {
        self.check(logits, targets);
        let write = |(): &mut (), range: Range<usize>, losses: Room, rows: Room<[f32; 2]>, _: Room<()>| {
            write_losses(*self, &logits[range.start * self.classes..], targets.part(range), losses, rows);
        };
        let batch = targets.classes.len();
        // SAFETY: `write_losses` writes all values.
        let (losses, rows, _) =
            unsafe { parallel::build_three([batch, self.rows()], [1, 1, 0], || (), write) };
        let total = sum(&losses, &losses, |loss, _| loss);
        let weight = match targets.weights {
            [] => batch as f32,
            weights => sum(weights, weights, |weight, _| weight),
        };
        (total / weight, Saved(rows, weight))
    }

    /// Gradient of the logits, from that of the loss.
    ///
    /// # Panics
    /// If the slices do not have the lengths of [`forward`](Self::forward).
    pub fn backward(&self, logits: &[f32], targets: Targets, saved: &Saved, gradient: f32) -> Vec<f32> {
        self.check(logits, targets);
        let (Saved(rows, weight), batch) = (saved, targets.classes.len());
        assert_eq!(rows.len(), batch, "one row for each target");
        let factor = gradient / weight;
        let write = |(): &mut (), range: Range<usize>, to: &mut [MaybeUninit<f32>]| {
            let logits = &logits[range.start * self.classes..];
            let (targets, rows) = (targets.part(range.clone()), &rows[range]);
            gradients(*self, logits, targets, rows, factor, to);
        };
        // SAFETY: `gradients` writes all values.
        unsafe { parallel::build([batch, self.rows()], self.classes, || (), write) }
    }

    fn check(&self, logits: &[f32], Targets { classes, weights }: Targets) {
        assert_eq!(Some(logits.len()), classes.len().checked_mul(self.classes), "[batch, classes]");
        assert!(weights.is_empty() || weights.len() == classes.len(), "one weight for each target");
    }

    /// Rows per part of the work.
    fn rows(&self) -> usize {
        (PART / self.classes.max(1)).max(1)
    }
}

multiversion!(
    fn write_losses(
        with: CrossEntropy,
        logits: &[f32],
        targets: Targets<'_>,
        losses: Room<'_>,
        rows: Room<'_, [f32; 2]>,
    ) {
        let CrossEntropy { classes, smoothing } = with;
        for (row, target) in targets.classes.iter().enumerate() {
            let weight = targets.weight(row);
            if weight == 0.0 {
                losses[row].write(0.0);
                rows[row].write([0.0; 2]);
                continue;
            }
            let logits = &logits[row * classes..][..classes];
            let most = largest(logits);
            let total = sum(logits, logits, |logit, _| exp(logit - most));
            let target = usize::try_from(*target).ok().and_then(|class| logits.get(class));
            // Relative to the largest logit, so that no digits are lost.
            let mut wanted = target.map_or(f32::NAN, |logit| logit - most);
            if smoothing != 0.0 {
                let mean = sum(logits, logits, |logit, _| logit - most) / classes as f32;
                wanted = (1.0 - smoothing) * wanted + smoothing * mean;
            }
            losses[row].write((total.ln() - wanted) * weight);
            rows[row].write([most, 1.0 / total]);
        }
    }
);

multiversion!(
    /// Gradient of the logits, where `factor` is that of the loss of a row with weight 1.
    fn gradients(
        with: CrossEntropy,
        logits: &[f32],
        targets: Targets<'_>,
        rows: &[[f32; 2]],
        factor: f32,
        to: &mut [MaybeUninit<f32>],
    ) {
        let CrossEntropy { classes, smoothing } = with;
        let spread = smoothing / classes as f32;
        for ((row, target), [most, scale]) in targets.classes.iter().enumerate().zip(rows) {
            let logits = &logits[row * classes..][..classes];
            let to = &mut to[row * classes..][..classes];
            let weight = targets.weight(row);
            if weight == 0.0 {
                to.fill(MaybeUninit::new(0.0));
                continue;
            }
            let factor = factor * weight;
            for (to, logit) in to.iter_mut().zip(logits) {
                to.write((exp(logit - most) * scale - spread) * factor);
            }
            match usize::try_from(*target).ok().filter(|class| *class < classes) {
                Some(class) => {
                    let share = exp(logits[class] - most) * scale - spread - (1.0 - smoothing);
                    to[class].write(share * factor);
                }
                None => to.fill(MaybeUninit::new(f32::NAN)),
            }
        }
    }
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_close, everywhere, noise, same_for_every_number_of_threads};

    fn results(with: CrossEntropy, logits: &[f32], targets: &[i64], gradient: f32) -> (f32, Vec<f32>) {
        weighted(with, logits, Targets { classes: targets, weights: &[] }, gradient)
    }

    fn weighted(with: CrossEntropy, logits: &[f32], targets: Targets, gradient: f32) -> (f32, Vec<f32>) {
        let (loss, saved) = with.forward(logits, targets);
        (loss, with.backward(logits, targets, &saved, gradient))
    }

    #[test]
    fn nan_infinity_and_invalid_targets_propagate() {
        everywhere(|width| {
            let with = CrossEntropy { classes: 3, smoothing: 0.0 };
            let loss = |logits: [f32; 3], target| results(with, &logits, &[target], 1.0);
            assert_eq!(loss([f32::NEG_INFINITY, 0.0, 0.0], 1).0, 2f32.ln(), "{width}");
            assert_eq!(loss([f32::NEG_INFINITY, 0.0, 0.0], 0).0, f32::INFINITY, "{width}");
            let none = [f32::NEG_INFINITY; 3];
            for (logits, target) in [
                ([f32::NAN, 0.0, 0.0], 1),
                ([f32::INFINITY, 0.0, 0.0], 1),
                (none, 1),
                ([0.0; 3], 3),
                ([0.0; 3], -1),
            ] {
                let (loss, gradient) = loss(logits, target);
                assert!(
                    loss.is_nan() && gradient.iter().any(|gradient| gradient.is_nan()),
                    "{width}, {logits:?}"
                );
            }
            let (loss, gradient) = results(with, &[], &[], 1.0);
            assert!(loss.is_nan() && gradient.is_empty(), "{width}");
        });
    }

    #[test]
    fn cross_entropy_is_bit_identical_for_every_number_of_threads() {
        let (batch, classes) = (77, 1003);
        let logits = noise(2, batch * classes);
        let targets: Vec<i64> = (0..batch as i64).collect();
        let with = CrossEntropy { classes, smoothing: 0.1 };
        same_for_every_number_of_threads(|| results(with, &logits, &targets, 1.0));
    }

    /// Reference values from torch 2.15's `cross_entropy` with label smoothing 0.1 in float64.
    #[test]
    fn values_and_gradients_equal_pytorchs() {
        let (with, logits) = (CrossEntropy { classes: 3, smoothing: 0.1 }, [1.0, -2.0, 0.5, 3.0, 0.0, -1.0]);
        let wanted = [0.2852078, -0.001637223, -0.2835706, 0.001453109, 0.006639645, -0.008092754];
        everywhere(|width| {
            let (loss, gradient) = results(with, &logits, &[2, 0], 1.0);
            assert_close(&[loss], &[0.6852404], width);
            assert_close(&gradient, &wanted, width);
        });
    }

    /// Reference values from torch 2.15's `cross_entropy` with class weights and a padded row in float64.
    #[test]
    fn weighted_values_and_gradients_equal_pytorchs() {
        let with = CrossEntropy { classes: 3, smoothing: 0.0 };
        let logits = [1.0, -2.0, 0.5, f32::NAN, 0.0, -1.0, 3.0, 0.0, -1.0];
        let targets = Targets { classes: &[2, 7, 0], weights: &[3.0, 0.0, 0.5] };
        let wanted =
            [0.5174991, 0.02576476, -0.5432638, 0.0, 0.0, 0.0, -0.009108635, 0.006658946, 0.002449689];
        everywhere(|width| {
            let (loss, gradient) = weighted(with, &logits, targets, 1.0);
            assert_close(&[loss], &[0.870495], width);
            assert_close(&gradient, &wanted, width);
        });
    }
}
