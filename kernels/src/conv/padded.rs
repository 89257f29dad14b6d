//! Padded copies of single images.

use super::{geometry::Geometry, source::Whole};
use crate::simd::{copy_strided, multiversion};

/// Buffer for one padded image at a time, `[channels, phases, height, width]`.
///
/// With a stride, there is a phase for each first row and column, so that neighbouring outputs read neighbouring values.
pub struct PaddedImage {
    padded: Vec<f32>,
}

impl PaddedImage {
    /// A zeroed buffer with `slack` readable values after the image.
    pub fn new(geometry: &Geometry, slack: usize) -> Self {
        Self { padded: vec![0.0; geometry.in_phases(geometry.channels, 0, 0) + slack] }
    }

    /// Copies `image` into the buffer. The border and the slack stay zero.
    ///
    /// # Panics
    /// If an image with the output of a ReLU has a stride between columns.
    pub fn fill(&mut self, geometry: &Geometry, image: Whole) -> &[f32] {
        fill(geometry, image, &mut self.padded);
        &self.padded
    }
}

multiversion!(
    fn fill(geometry: &Geometry, image: Whole<'_>, padded: &mut [f32]) {
        let ([rows, columns], [top, left], [down, right]) =
            (geometry.size, geometry.padding, geometry.stride);
        assert!(right == 1 || image.output.is_none(), "gradients have no stride");
        let [_, width] = geometry.phase();
        for channel in 0..geometry.channels {
            for row in 0..down.min(rows) {
                for column in 0..right.min(columns) {
                    let mut to = geometry.in_phases(channel, top + row, left + column);
                    let count = (columns - column).div_ceil(right);
                    for row in (row..rows).step_by(down) {
                        let from = (channel * rows + row) * columns + column;
                        let values = &mut padded[to..to + count];
                        match right {
                            1 => image.part(from, count).copy_to(values),
                            _ => copy_strided(&image.values[from..], right, values),
                        }
                        to += width;
                    }
                }
            }
        }
    }
);
