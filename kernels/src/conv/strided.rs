//! Convolution with a stride, as a convolution of stride 1 over more channels.
//!
//! With stride s, output row y reads input rows s·y + tap. Rows of equal remainder modulo s are moved into channels of
//! their own, and so are columns; then consecutive outputs read consecutive values, and the kernels of stride 1 apply.
//! Taps that an even split would need beyond the kernel are zero: a 3 × 3 kernel of stride 2 becomes four channels
//! of 2 × 2 taps, 9 of which are not zero. A 1 × 1 kernel needs no additional channel. A zero tap on NaN or infinity
//! gives NaN.

use super::geometry::Geometry;
use crate::parallel;
use std::{mem::MaybeUninit, ops::Range};

/// A convolution with a stride above 1 on some axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strided {
    /// `[batch, channels, height, width]`
    images: [usize; 4],
    /// `[filters, channels, height, width]`
    weights: [usize; 4],
    padding: [usize; 2],
    stride: [usize; 2],
    /// Number of remainders that a tap has, by axis.
    remainders: [usize; 2],
    /// The convolution of stride 1.
    geometry: Geometry,
}

impl Strided {
    /// Validates shapes of images and weights, without dilation.
    ///
    /// `None` if a dimension is zero, the shapes do not match, the padding is not smaller than the kernel, or a
    /// tensor would not fit in the address space.
    pub fn new(
        images: [usize; 4],
        weights: [usize; 4],
        padding: [usize; 2],
        stride: [usize; 2],
    ) -> Option<Self> {
        // Validates the shapes.
        Geometry::new(images, weights, padding, [1, 1])?;
        let ([batch, channels, ..], [filters, _, ..]) = (images, weights);
        let (mut size, mut kernel, mut remainders) = ([0; 2], [0; 2], [0; 2]);
        for axis in 0..2 {
            let (taps, stride) = (weights[2 + axis], stride[axis]);
            let padded = images[2 + axis] + 2 * padding[axis];
            let outputs = (padded - taps).checked_div(stride)? + 1;
            kernel[axis] = taps.div_ceil(stride);
            size[axis] = outputs + kernel[axis] - 1;
            remainders[axis] = stride.min(taps);
        }
        let channels = channels.checked_mul(remainders[0])?.checked_mul(remainders[1])?;
        let geometry = Geometry::new(
            [batch, channels, size[0], size[1]],
            [filters, channels, kernel[0], kernel[1]],
            [0, 0],
            [1, 1],
        )?;
        Some(Self { images, weights, padding, stride, remainders, geometry })
    }

    /// The convolution of stride 1 over [`Strided::fold`]ed images and weights.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Shape of the images, `[batch, channels, height, width]`.
    pub fn inputs(&self) -> [usize; 4] {
        self.images
    }

    /// Shape of the weights, `[filters, channels, height, width]`.
    pub fn weights(&self) -> [usize; 4] {
        self.weights
    }

    /// Moves values of images into the channels of their remainders.
    ///
    /// # Panics
    /// If there are fewer values than the shape requires.
    pub fn fold(&self, images: &[f32]) -> Vec<f32> {
        let ([batch, channels, height, width], [_, _, rows, columns]) = (self.images, self.geometry.inputs());
        let len = channels * height * width;
        let one = |(): &mut (), image: usize, to: &mut [MaybeUninit<f32>]| {
            let from = &images[image * len..][..len];
            for (plane, to) in to.chunks_exact_mut(rows * columns).enumerate() {
                let (channel, [first_row, first_column]) = self.remainder(plane);
                let inside = self.inside(1, first_column);
                for (row, to) in to.chunks_exact_mut(columns).enumerate() {
                    to.fill(MaybeUninit::new(0.0));
                    let Some(y) = self.source(0, row, first_row) else { continue };
                    let from = &from[(channel * height + y) * width..][..width];
                    let Some(x) = self.source(1, inside.start, first_column) else { continue };
                    let values = from[x..].iter().step_by(self.stride[1]);
                    for (to, value) in to[inside.clone()].iter_mut().zip(values) {
                        to.write(*value);
                    }
                }
            }
        };
        // SAFETY: every row of every plane is filled.
        unsafe { parallel::build(batch, self.geometry.image(), || (), one) }
    }

    /// Moves gradients of folded images back to the images.
    ///
    /// # Panics
    /// If there are fewer values than the shape requires.
    pub fn unfold(&self, folded: &[f32]) -> Vec<f32> {
        let ([batch, channels, height, width], [_, _, rows, columns]) = (self.images, self.geometry.inputs());
        let len = self.geometry.image();
        let one = |(): &mut (), image: usize, to: &mut [MaybeUninit<f32>]| {
            to.fill(MaybeUninit::new(0.0));
            for (plane, from) in folded[image * len..][..len].chunks_exact(rows * columns).enumerate() {
                let (channel, [first_row, first_column]) = self.remainder(plane);
                let inside = self.inside(1, first_column);
                for (row, from) in from.chunks_exact(columns).enumerate() {
                    let Some(y) = self.source(0, row, first_row) else { continue };
                    let to = &mut to[(channel * height + y) * width..][..width];
                    let Some(x) = self.source(1, inside.start, first_column) else { continue };
                    let values = to[x..].iter_mut().step_by(self.stride[1]);
                    for (to, value) in values.zip(&from[inside.clone()]) {
                        to.write(*value);
                    }
                }
            }
        };
        // SAFETY: every value is filled.
        unsafe { parallel::build(batch, channels * height * width, || (), one) }
    }

    /// Moves taps into the channels of their remainders, with zeros where there is none.
    pub fn fold_weights(&self, weights: &[f32]) -> Vec<f32> {
        let mut folded = vec![0.0; self.geometry.weights().iter().product()];
        self.taps(|tap, to| folded[to] = weights[tap]);
        folded
    }

    /// Moves gradients of folded weights back to the weights.
    pub fn unfold_weights(&self, folded: &[f32]) -> Vec<f32> {
        let mut weights = vec![0.0; self.weights.iter().product()];
        self.taps(|tap, from| weights[tap] = folded[from]);
        weights
    }

    /// Calls `pair` with the index of each weight and that of its place in the folded weights.
    fn taps(&self, mut pair: impl FnMut(usize, usize)) {
        let ([_, _, rows, columns], [_, _, height, width]) = (self.weights, self.geometry.weights());
        for tap in 0..self.weights.iter().product() {
            let (plane, y, x) = (tap / (rows * columns), tap / columns % rows, tap % columns);
            let remainder = (y % self.stride[0]) * self.remainders[1] + x % self.stride[1];
            let folded = plane * self.remainders[0] * self.remainders[1] + remainder;
            pair(tap, (folded * height + y / self.stride[0]) * width + x / self.stride[1]);
        }
    }

    /// Channel and remainders of a folded plane.
    fn remainder(&self, plane: usize) -> (usize, [usize; 2]) {
        let [rows, columns] = self.remainders;
        (plane / (rows * columns), [plane / columns % rows, plane % columns])
    }

    /// The image's row or column at `position` of a folded plane; `None` in the padding.
    fn source(&self, axis: usize, position: usize, remainder: usize) -> Option<usize> {
        let at = (position * self.stride[axis] + remainder).checked_sub(self.padding[axis])?;
        (at < self.images[2 + axis]).then_some(at)
    }

    /// The positions of a folded plane that are in the image.
    fn inside(&self, axis: usize, remainder: usize) -> Range<usize> {
        let (stride, padding) = (self.stride[axis], self.padding[axis]);
        let len = self.geometry.inputs()[2 + axis];
        let first = |reached: usize| reached.saturating_sub(remainder).div_ceil(stride).min(len);
        first(padding)..first(padding + self.images[2 + axis])
    }
}
