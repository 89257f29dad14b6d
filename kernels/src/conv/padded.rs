//! Padded copies of single images.

use super::{
    geometry::{Geometry, Phases},
    source::Whole,
};
use crate::simd::{copy_strided, multiversion};

/// Buffer for the phases of one image at a time, `[channels, phases]`.
pub struct PaddedImage {
    padded: Vec<f32>,
}

impl PaddedImage {
    /// A zeroed buffer with `slack` readable values after the image.
    pub fn new(geometry: &Geometry, slack: usize) -> Self {
        Self { padded: vec![0.0; geometry.channels * geometry.phases().len() + slack] }
    }

    /// Copies `image` into the buffer. The border and the slack stay zero.
    ///
    /// # Panics
    /// If an image with the output of a ReLU has a stride between columns.
    pub fn fill(&mut self, geometry: &Geometry, image: Whole) -> &[f32] {
        fill(geometry, &geometry.phases(), image, &mut self.padded);
        &self.padded
    }
}

multiversion!(
    fn fill(geometry: &Geometry, phases: &Phases, image: Whole<'_>, padded: &mut [f32]) {
        let ([height, width], stride) = (geometry.size, geometry.stride[1]);
        assert!(stride == 1 || image.output.is_none(), "gradients have no stride");
        for (channel, padded) in padded.chunks_exact_mut(phases.len()).take(geometry.channels).enumerate() {
            let start = channel * height * width;
            phases.lines(geometry, |at, to, count| match stride {
                1 => image.part(start + at, count).copy_to(&mut padded[to..to + count]),
                _ => copy_strided(&image.values[start + at..], stride, &mut padded[to..to + count]),
            });
        }
    }
);
