//! Activation functions.

use crate::layers;
use burn::module::Module;
use burn::tensor::{Tensor, activation};

/// The larger of zero and each value.
#[derive(Module, Debug, Default)]
pub struct Relu;

impl Relu {
    /// Creates the function.
    pub fn new() -> Self {
        Self
    }

    /// Applies the function to a tensor of any shape.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        layers::relu(input)
    }
}

/// GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415).
#[derive(Module, Debug, Default)]
pub struct Gelu {
    /// Whether the approximation with tanh is used, which is Burn's operation.
    pub approximate: bool,
}

impl Gelu {
    /// Creates the function, with the error function.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the approximation with tanh.
    pub fn new_approximate() -> Self {
        Self { approximate: true }
    }

    /// Applies the function to a tensor of any shape.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        if self.approximate { activation::gelu_approximate(input) } else { layers::gelu(input) }
    }
}

/// SiLU or swish, x σ(x) (Elfwing et al. 2017, arXiv 1702.03118).
#[derive(Module, Debug, Default)]
pub struct Silu;

impl Silu {
    /// Creates the function.
    pub fn new() -> Self {
        Self
    }

    /// Applies the function to a tensor of any shape.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        layers::silu(input)
    }
}
