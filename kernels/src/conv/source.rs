//! What the kernels read image by image: images, gradients, and gradients of what was pooled.

use super::geometry::Geometry;
use crate::simd::copy;

/// A value for each output, or images, which come the same way.
#[derive(Clone, Copy)]
pub struct Whole<'a> {
    /// The values.
    pub values: &'a [f32],
    /// The output, if there was a ReLU at its end: what that cut off counts as zero.
    pub output: Option<&'a [f32]>,
}

impl<'a> Whole<'a> {
    /// `len` values from `start` on.
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
                // SAFETY: both are so long.
                unsafe { copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
            }
            Some(output) => {
                for at in 0..to.len() {
                    to[at] = passed(self.values[at], output[at]);
                }
            }
        }
    }
}

/// What a ReLU lets through backwards; of NaN everything, as Burn's does.
#[inline(always)]
fn passed(gradient: f32, output: f32) -> f32 {
    if output <= 0.0 { 0.0 } else { gradient }
}

/// A value for each window of 2 × 2 outputs: see [`super::forward_pooled`].
#[derive(Clone, Copy)]
pub struct Pooled<'a> {
    /// The gradients, `[batch, filters, height / 2, width / 2]`.
    pub values: &'a [f32],
    /// Which of its window's values each belongs to.
    pub taken: &'a [u8],
}

impl<'a> Pooled<'a> {
    /// `len` values from `start` on.
    #[inline(always)]
    pub(super) fn part(&self, start: usize, len: usize) -> Pooled<'a> {
        Pooled { values: &self.values[start..start + len], taken: &self.taken[start..start + len] }
    }

    /// Puts one channel's gradients into the even and the odd columns of its padded plane, in rows of
    /// `width` each. `scratch` has room for them.
    #[inline(always)]
    pub(super) fn spread(
        &self,
        geometry: &Geometry,
        width: usize,
        scratch: &mut [f32],
        halves: &mut [Vec<f32>; 2],
    ) {
        let ([top, left], columns) = (geometry.padding, geometry.size[1] / 2);
        let (scratch, values) = (&mut scratch[..self.taken.len()], &self.values[..self.taken.len()]);
        for corner in 0..4 {
            for at in 0..self.taken.len() {
                scratch[at] = if self.taken[at] == corner as u8 { values[at] } else { 0.0 };
            }
            let (row, column) = (top + corner / 2, left + corner % 2);
            let half = &mut halves[column % 2];
            for (number, from) in scratch.chunks_exact(columns).enumerate() {
                let to = &mut half[(row + 2 * number) * width + column / 2..][..columns];
                // SAFETY: both are so long.
                unsafe { copy(from.as_ptr(), to.as_mut_ptr(), columns) };
            }
        }
    }
}

/// The gradient of an output.
#[derive(Clone, Copy)]
pub enum Gradient<'a> {
    /// Value by value.
    Whole(Whole<'a>),
    /// Of each window one value; the others are zero.
    Pooled(Pooled<'a>),
}

impl<'a> Gradient<'a> {
    /// Images as they are.
    pub(super) fn images(values: &'a [f32]) -> Self {
        Gradient::Whole(Whole { values, output: None })
    }

    /// The planes of one image, or of one channel, if they are all counted through.
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
