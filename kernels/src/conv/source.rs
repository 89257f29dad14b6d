//! Inputs of the kernels: images, gradients, and gradients of pooled outputs.

use super::shape::Shape;
use crate::{activation::relu_gradient, simd::copy};

/// Images, or a gradient with a value for each output.
#[derive(Clone, Copy)]
pub struct Whole<'a> {
    /// The values.
    pub values: &'a [f32],
    /// The output of a final ReLU. The gradient counts as zero where the output is zero.
    pub output: Option<&'a [f32]>,
}

impl<'a> Whole<'a> {
    /// The `len` values from `start`.
    #[inline(always)]
    pub(super) fn part(&self, start: usize, len: usize) -> Whole<'a> {
        let range = start..start + len;
        Whole { values: &self.values[range.clone()], output: self.output.map(|output| &output[range]) }
    }

    #[inline(always)]
    pub(super) fn copy_to(&self, to: &mut [f32]) {
        match self.output {
            None => {
                let from = &self.values[..to.len()];
                // SAFETY: both have this length.
                unsafe { copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
            }
            Some(output) => {
                for at in 0..to.len() {
                    to[at] = relu_gradient(output[at], self.values[at]);
                }
            }
        }
    }
}

/// Gradient of a 2 × 2 pooled output; see [`super::Shape::forward_pooled`].
#[derive(Clone, Copy)]
pub struct Pooled<'a> {
    /// The gradients, `[batch, filters, height / 2, width / 2]`.
    pub values: &'a [f32],
    /// Index of each pooled value within its window.
    pub taken: &'a [u8],
}

impl<'a> Pooled<'a> {
    /// The `len` values from `start`.
    #[inline(always)]
    pub(super) fn part(&self, start: usize, len: usize) -> Pooled<'a> {
        Pooled { values: &self.values[start..start + len], taken: &self.taken[start..start + len] }
    }

    /// Spreads one channel's gradients to the even and odd columns of its padded plane.
    ///
    /// Rows have `width` columns each. `scratch` has room for the gradients.
    #[inline(always)]
    pub(super) fn spread(
        &self,
        shape: &Shape,
        width: usize,
        scratch: &mut [f32],
        halves: &mut [Vec<f32>; 2],
    ) {
        let ([top, left], columns) = (shape.padding, shape.size[1] / 2);
        let (scratch, values) = (&mut scratch[..self.taken.len()], &self.values[..self.taken.len()]);
        for corner in 0..4 {
            for at in 0..self.taken.len() {
                scratch[at] = if self.taken[at] == corner as u8 { values[at] } else { 0.0 };
            }
            let (row, column) = (top + corner / 2, left + corner % 2);
            let half = &mut halves[column % 2];
            for (number, from) in scratch.chunks_exact(columns).enumerate() {
                let to = &mut half[(row + 2 * number) * width + column / 2..][..columns];
                // SAFETY: both have this length.
                unsafe { copy(from.as_ptr(), to.as_mut_ptr(), columns) };
            }
        }
    }
}

/// The gradient of an output.
#[derive(Clone, Copy)]
pub enum Gradient<'a> {
    /// A value for each output.
    Whole(Whole<'a>),
    /// A value for each window; the other values are zero.
    Pooled(Pooled<'a>),
}

impl<'a> Gradient<'a> {
    /// The `planes` consecutive planes at index `number × planes`.
    #[inline(always)]
    pub(super) fn image(&self, number: usize, planes: usize, size: [usize; 2]) -> Gradient<'a> {
        match self {
            Gradient::Whole(values) => {
                let len = planes * size[0] * size[1];
                Gradient::Whole(values.part(number * len, len))
            }
            Gradient::Pooled(pooled) => {
                let len = planes * (size[0] / 2) * (size[1] / 2);
                Gradient::Pooled(pooled.part(number * len, len))
            }
        }
    }
}

/// Values without a ReLU.
impl<'a> From<&'a [f32]> for Whole<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self { values, output: None }
    }
}

/// Values without a ReLU and pooling.
impl<'a> From<&'a [f32]> for Gradient<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::Whole(values.into())
    }
}
