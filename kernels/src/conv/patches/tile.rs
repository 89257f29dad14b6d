//! Parts of the output of a convolution, and their patches.

use crate::conv::{shape::Shape, source::Whole};
use crate::{
    product::Matrix,
    simd::{copy_strided, multiversion},
};
use std::ops::Range;

/// Some rows of the output of one image, or all of some images.
pub struct Tile<'a> {
    pub shape: &'a Shape,
    pub images: Range<usize>,
    pub rows: Range<usize>,
}

impl Tile<'_> {
    /// Output positions of all images.
    pub fn positions(&self) -> usize {
        self.images.len() * self.rows.len() * self.shape.output[1]
    }

    /// The first position in its plane.
    pub fn start(&self) -> usize {
        self.rows.start * self.shape.output[1]
    }

    /// Patches `[taps, positions]`.
    pub fn patches<'w>(&self, images: &[f32], to: &'w mut [f32]) -> Matrix<'w> {
        let (taps, count) = (self.shape.taps(), self.positions());
        let patches = &mut to[..taps * count];
        let len = self.shape.image();
        let images = &images[self.images.start * len..self.images.end * len];
        collect(self, images, patches);
        Matrix::new(patches, [taps, count])
    }

    /// Gradients `[filters, positions]`.
    pub fn gather(&self, gradient: Whole, to: &mut [f32]) {
        let Shape { filters, output: [_, width], .. } = *self.shape;
        let (plane, len) = (self.shape.output_plane(), self.rows.len() * width);
        for (filter, to) in to.chunks_exact_mut(self.positions()).take(filters).enumerate() {
            for (image, to) in self.images.clone().zip(to.chunks_exact_mut(len)) {
                gradient.part((image * filters + filter) * plane + self.start(), len).copy_to(to);
            }
        }
    }

    /// Calls `run(patches, image, count)` for each run of `count` values of the patches, which are `stride` apart in the
    /// images of this tile.
    #[inline(always)]
    fn runs(&self, mut run: impl FnMut(usize, usize, usize)) {
        let Shape { channels, size, padding, kernel: [rows, columns], stride, dilation, output, .. } =
            *self.shape;
        let [height, width] = size;
        let inside = |offset: usize, length: usize, stride: usize, padding: usize, outputs: usize| {
            let first = |reached: usize| reached.saturating_sub(offset).div_ceil(stride).min(outputs);
            first(padding)..first(padding + length)
        };
        let mut tap = 0;
        for channel in 0..channels {
            for row in 0..rows {
                for column in 0..columns {
                    let xs = inside(column * dilation[1], width, stride[1], padding[1], output[1]);
                    let ys = inside(row * dilation[0], height, stride[0], padding[0], output[0]);
                    let mut at = tap * self.positions();
                    tap += 1;
                    for image in 0..self.images.len() {
                        for y in self.rows.clone() {
                            if ys.contains(&y) && !xs.is_empty() {
                                let line = y * stride[0] + row * dilation[0] - padding[0];
                                let first = xs.start * stride[1] + column * dilation[1] - padding[1];
                                let from = ((image * channels + channel) * height + line) * width + first;
                                run(at + xs.start, from, xs.len());
                            }
                            at += output[1];
                        }
                    }
                }
            }
        }
    }
}

multiversion!(
    /// Fills the patches of a tile.
    fn collect(tile: &Tile<'_>, images: &[f32], patches: &mut [f32]) {
        let stride = tile.shape.stride[1];
        // Positions outside the images.
        patches.fill(0.0);
        tile.runs(|at, from, count| {
            copy_strided(&images[from..], stride, &mut patches[at..at + count]);
        });
    }
);

multiversion!(
    /// Adds patches to the images of a tile.
    pub fn spread(tile: &Tile<'_>, patches: &[f32], to: &mut [f32]) {
        let stride = tile.shape.stride[1];
        tile.runs(|at, start, count| {
            let from = &patches[at..at + count];
            match stride {
                1 => to[start..start + count].iter_mut().zip(from).for_each(|(to, value)| *to += value),
                _ => to[start..].iter_mut().step_by(stride).zip(from).for_each(|(to, value)| *to += value),
            }
        });
    }
);
