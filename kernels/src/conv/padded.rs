//! One image at a time with its padding.

use super::{geometry::Geometry, source::Whole};

/// One image at a time with its padding around it.
pub struct PaddedImage {
    padded: Vec<f32>,
}

impl PaddedImage {
    /// With `slack` values after the image that may be read and mean nothing.
    pub fn new(geometry: &Geometry, slack: usize) -> Self {
        let [height, width] = geometry.padded();
        Self { padded: vec![0.0; geometry.channels * height * width + slack] }
    }

    /// Puts `image` there. The border and the slack stay zero.
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
