//! Padded copies of single images.

use super::{
    shape::{Phases, Shape},
    source::Whole,
};
use crate::simd::{copy_strided, multiversion};

/// Buffer for the phases of one image at a time, `[channels, phases]`.
pub struct PaddedImage {
    padded: Vec<f32>,
}

impl PaddedImage {
    /// A zeroed buffer with `slack` readable values after the image.
    pub fn new(shape: &Shape, slack: usize) -> Self {
        Self { padded: vec![0.0; shape.channels * shape.phases().len() + slack] }
    }

    /// Copies `image` into the buffer. The border and the slack stay zero.
    ///
    /// # Panics
    /// If an image with the output of a ReLU has a stride between columns.
    pub fn fill(&mut self, shape: &Shape, image: Whole) -> &[f32] {
        fill(shape, &shape.phases(), image, &mut self.padded);
        &self.padded
    }
}

multiversion!(
    fn fill(shape: &Shape, phases: &Phases, image: Whole<'_>, padded: &mut [f32]) {
        let ([height, width], stride) = (shape.size, shape.stride[1]);
        assert!(stride == 1 || image.output.is_none(), "gradients have no stride");
        for (channel, padded) in padded.chunks_exact_mut(phases.len()).take(shape.channels).enumerate() {
            let start = channel * height * width;
            phases.lines(shape, |at, to, count| match stride {
                1 => image.part(start + at, count).copy_to(&mut padded[to..to + count]),
                _ => copy_strided(&image.values[start + at..], stride, &mut padded[to..to + count]),
            });
        }
    }
);
