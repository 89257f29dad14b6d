//! Padded copies of single images.

use super::{geometry::Geometry, source::Whole};

/// Buffer for one padded image at a time.
pub struct PaddedImage {
    padded: Vec<f32>,
}

impl PaddedImage {
    /// A zeroed buffer with `slack` readable values after the image.
    pub fn new(geometry: &Geometry, slack: usize) -> Self {
        let [height, width] = geometry.padded();
        Self { padded: vec![0.0; geometry.channels * height * width + slack] }
    }

    /// Copies `image` into the buffer. The border and the slack stay zero.
    pub fn fill(&mut self, geometry: &Geometry, image: Whole) -> &[f32] {
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
