//! Batch normalisation followed by ReLU.
//!
//! No mask is stored: the gradient's passes compute the sign of each output again from the input, which they read
//! anyway.

use super::{Affine, Centred, Relu, apply_with, sums_through};

/// The positive part of each channel's map of `x`, `[batch, channels, positions]`. NaN is propagated.
///
/// # Panics
/// If there are fewer values than the shape requires or fewer maps than channels.
pub fn relu(outputs: &[Affine], x: Centred, shape: [usize; 3]) -> Vec<f32> {
    apply_with(outputs, x, None, Relu::After, shape)
}

/// A gradient of [`relu`]'s output.
#[derive(Clone, Copy)]
pub struct ReluGradient<'a> {
    /// Shape `[batch, channels, positions]`.
    pub values: &'a [f32],
    /// The maps of the forward pass.
    pub outputs: &'a [Affine],
    /// Their input.
    pub x: Centred<'a>,
}

impl<'a> ReluGradient<'a> {
    /// Sums the gradient before the ReLU, and that gradient × `x`, over each channel.
    ///
    /// # Panics
    /// If there are fewer values than the shape `[batch, channels, positions]` requires.
    pub fn sums(self, shape: [usize; 3]) -> Vec<[f64; 2]> {
        sums_through(self.gradient(), self.x, Some(self.outputs), shape)
    }

    /// Applies each channel's map to the gradient before the ReLU and to `x`.
    ///
    /// # Panics
    /// As [`ReluGradient::sums`], or if there are fewer maps than channels.
    pub fn apply(self, lines: &[Affine], shape: [usize; 3]) -> Vec<f32> {
        apply_with(lines, self.gradient(), Some(self.x), Relu::Before(self.outputs), shape)
    }

    fn gradient(&self) -> Centred<'a> {
        Centred { values: self.values, centres: None }
    }
}
