//! Images as the kernels read them: padded, and gradients without what ReLU cut off.

use super::geometry::Geometry;
use crate::simd::copy;

/// Gradients of an output, and the output if there was a ReLU at its end: what that cut off counts as
/// zero.
#[derive(Clone, Copy)]
pub struct Gradient<'a> {
    /// The gradients.
    pub values: &'a [f32],
    /// The output, after its ReLU.
    pub output: Option<&'a [f32]>,
}

impl<'a> Gradient<'a> {
    /// `len` values from `start` on.
    #[inline(always)]
    pub(super) fn part(&self, start: usize, len: usize) -> Gradient<'a> {
        let range = start..start + len;
        Gradient { values: &self.values[range.clone()], output: self.output.map(|output| &output[range]) }
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

/// One image at a time with its padding around it.
pub struct Stage {
    padded: Vec<f32>,
}

impl Stage {
    /// With `slack` values after the image that may be read and mean nothing.
    pub fn new(geometry: &Geometry, slack: usize) -> Self {
        let [height, width] = geometry.padded();
        Self { padded: vec![0.0; geometry.channels * height * width + slack] }
    }

    /// Puts `image` there. The border and the slack stay zero.
    pub fn fill(&mut self, geometry: &Geometry, image: Gradient) -> &[f32] {
        let ([rows, columns], [top, left]) = (geometry.size, geometry.padding);
        let [height, width] = geometry.padded();
        for channel in 0..geometry.channels {
            for row in 0..rows {
                let to = (channel * height + top + row) * width + left;
                let from = (channel * rows + row) * columns;
                image.part(from, columns).copy_to(&mut self.padded[to..to + columns]);
            }
        }
        &self.padded
    }
}
