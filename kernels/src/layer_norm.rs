//! Layer normalisation over the rows of a matrix (Ba et al. 2016, arXiv 1607.06450).

use crate::{
    parallel,
    simd::{arch, sum},
};
use pulp::{Simd, WithSimd};
use std::mem::MaybeUninit;

/// Rows per part of the work.
const ROWS: usize = 64;

/// Settings of the layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a> {
    /// Factors of the normalised values of a row.
    pub gamma: &'a [f32],
    /// Summands after them; empty for none.
    pub beta: &'a [f32],
    /// Added to the variance.
    pub epsilon: f32,
}

impl LayerNorm<'_> {
    /// Normalises every row of `x`.
    ///
    /// # Panics
    /// If `x` is not in whole rows, or `beta` has another length than `gamma`.
    pub fn forward(&self, x: &[f32]) -> Vec<f32> {
        let width = self.width(x);
        let part = |from: usize, to: &mut [MaybeUninit<f32>]| {
            arch().dispatch(Forward { with: *self, x: &x[from..][..to.len()], to });
        };
        // SAFETY: `Forward` writes all values.
        unsafe { parts(x.len(), width, part) }
    }

    /// Gradients of `x`, `gamma` and `beta`, from that of the output. That of `beta` is empty without it.
    ///
    /// # Panics
    /// If `gradient` has another length than `x`, or as [`forward`](Self::forward).
    pub fn backward(&self, x: &[f32], gradient: &[f32]) -> [Vec<f32>; 3] {
        let width = self.width(x);
        assert_eq!(x.len(), gradient.len(), "one length for both");
        let (part, sums) = (ROWS * width, width + self.beta.len());
        let work = |from: usize, for_x: &mut [MaybeUninit<f32>], sums: &mut [MaybeUninit<f32>]| {
            let range = from..from + for_x.len();
            sums.fill(MaybeUninit::new(0.0));
            // SAFETY: all sums were written.
            let sums = unsafe { &mut *(std::ptr::from_mut(sums) as *mut [f32]) };
            let (x, gradient) = (&x[range.clone()], &gradient[range]);
            arch().dispatch(Backward { with: *self, x, gradient, for_x, sums });
        };
        let whole = x.len() / part.max(1);
        let write = |(): &mut (), number: usize, for_x: &mut [_], sums: &mut [_]| {
            work(number * part, for_x, sums);
        };
        // SAFETY: `work` writes all values.
        let (mut for_x, mut all) = unsafe { parallel::build_two(whole, [part, sums], || (), write) };
        let rest = x.len() - whole * part;
        if rest > 0 {
            for_x.reserve_exact(rest);
            all.reserve_exact(sums);
            work(
                whole * part,
                &mut for_x.spare_capacity_mut()[..rest],
                &mut all.spare_capacity_mut()[..sums],
            );
            // SAFETY: the rest was written as well.
            unsafe {
                for_x.set_len(x.len());
                all.set_len((whole + 1) * sums);
            }
        }
        let mut for_parameters = vec![0.0; sums];
        for part in all.chunks_exact(sums.max(1)) {
            for_parameters.iter_mut().zip(part).for_each(|(to, from)| *to += from);
        }
        let for_beta = for_parameters.split_off(width);
        [for_x, for_parameters, for_beta]
    }

    fn width(&self, x: &[f32]) -> usize {
        let width = self.gamma.len();
        assert!(x.is_empty() || x.len().checked_rem(width) == Some(0), "whole rows");
        assert!(self.beta.is_empty() || self.beta.len() == width, "beta is as long as gamma");
        width
    }
}

/// A vector of `len` values, whose parts of whole rows are written by `write(first value, values)`.
///
/// # Safety
/// `write` must write every value.
unsafe fn parts(
    len: usize,
    width: usize,
    write: impl Fn(usize, &mut [MaybeUninit<f32>]) + Sync + Send,
) -> Vec<f32> {
    let part = ROWS * width;
    let whole = len / part.max(1);
    // SAFETY: the caller's contract.
    let mut values =
        unsafe { parallel::build(whole, part, || (), |(), number, values| write(number * part, values)) };
    let rest = len - whole * part;
    values.reserve_exact(rest);
    write(whole * part, &mut values.spare_capacity_mut()[..rest]);
    // SAFETY: the rest was written as well.
    unsafe { values.set_len(len) };
    values
}

/// Mean and 1 / standard deviation of a row.
#[inline(always)]
fn statistics(row: &[f32], epsilon: f32) -> (f32, f32) {
    let count = row.len() as f32;
    let mean = sum(row.len(), |at| row[at]) / count;
    let variance = sum(row.len(), |at| (row[at] - mean) * (row[at] - mean)) / count;
    (mean, 1.0 / (variance + epsilon).sqrt())
}

struct Forward<'a> {
    with: LayerNorm<'a>,
    x: &'a [f32],
    to: &'a mut [MaybeUninit<f32>],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let LayerNorm { gamma, beta, epsilon } = self.with;
        let width = gamma.len().max(1);
        for (x, to) in self.x.chunks_exact(width).zip(self.to.chunks_exact_mut(width)) {
            let (mean, scale) = statistics(x, epsilon);
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
}

struct Backward<'a> {
    with: LayerNorm<'a>,
    x: &'a [f32],
    gradient: &'a [f32],
    for_x: &'a mut [MaybeUninit<f32>],
    /// Gradients of gamma and beta.
    sums: &'a mut [f32],
}

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let LayerNorm { gamma, epsilon, .. } = self.with;
        let width = gamma.len().max(1);
        let (for_gamma, for_beta) = self.sums.split_at_mut(width.min(self.sums.len()));
        let rows = self.x.chunks_exact(width).zip(self.gradient.chunks_exact(width));
        for ((x, gradient), to) in rows.zip(self.for_x.chunks_exact_mut(width)) {
            let gradient = &gradient[..width];
            let (x, gamma, to) = (&x[..width], &gamma[..width], &mut to[..width]);
            let (mean, scale) = statistics(x, epsilon);
            let along = sum(width, |at| gradient[at] * gamma[at]) / width as f32;
            let across = sum(width, |at| gradient[at] * gamma[at] * (x[at] - mean)) * scale / width as f32;
            for at in 0..width {
                let normalised = (x[at] - mean) * scale;
                to[at].write((gradient[at] * gamma[at] - along - normalised * across) * scale);
            }
            for ((sum, gradient), x) in for_gamma.iter_mut().zip(gradient).zip(x) {
                *sum += gradient * ((x - mean) * scale);
            }
            for_beta.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient);
        }
    }
}
