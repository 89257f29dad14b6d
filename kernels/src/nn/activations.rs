//! Activation functions.

use super::drop_in::drop_in;
use crate::layers;
use burn::module::Module;
use burn::nn::{Initializer, LinearLayout};
use burn::tensor::{Device, Tensor};

/// A module without settings that applies a function of [`layers`].
macro_rules! function {
    ($(#[$doc:meta])* $name:ident = $function:path) => {
        $(#[$doc])*
        #[derive(Module, Debug, Default)]
        pub struct $name;

        impl $name {
            /// Creates the function.
            pub fn new() -> Self {
                Self
            }

            /// Applies the function to a tensor of any shape.
            pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
                $function(input)
            }
        }
    };
}

function! {
    /// The larger of zero and each value.
    Relu = layers::relu
}

function! {
    /// SiLU or swish, x σ(x) (Elfwing et al. 2017, arXiv 1702.03118).
    Silu = layers::silu
}

function! {
    /// The logistic function, 1 / (1 + e^−x).
    Sigmoid = layers::sigmoid
}

function! {
    /// Hyperbolic tangent.
    Tanh = layers::tanh
}

drop_in! {
    /// Leaky ReLU (Maas et al. 2013): multiplies negative values by `negative_slope`.
    LeakyRelu: burn::nn::LeakyRelu;
    LeakyReluConfig: burn::nn::LeakyReluConfig,
    new(),
    with(with_negative_slope: f64),
    init(),
    /// Applies the function to a tensor of any shape.
    forward<D>(Tensor<D>) -> Tensor<D> = layers::leaky_relu
}

drop_in! {
    /// PReLU (He et al. 2015, arXiv 1502.01852): a leaky ReLU with learned slopes, one or one for each channel.
    PRelu: burn::nn::PRelu;
    PReluConfig: burn::nn::PReluConfig,
    new(),
    with(with_num_parameters: usize, with_alpha: f64),
    init(device: &Device),
    /// Applies the function to `[batch, channels, …]`; see [`layers::prelu`].
    forward<D>(Tensor<D>) -> Tensor<D> = layers::prelu
}

drop_in! {
    /// SwiGLU (Shazeer 2020, arXiv 2002.05202): `silu(x × inner) · (x × outer)`.
    SwiGlu: burn::nn::SwiGlu;
    SwiGluConfig: burn::nn::SwiGluConfig,
    new(d_input: usize, d_output: usize),
    with(with_bias: bool, with_initializer: Initializer, with_layout: LinearLayout),
    init(device: &Device),
    /// Maps `[…, d_input]` to `[…, d_output]`; see [`layers::swiglu`].
    forward<D>(Tensor<D>) -> Tensor<D> = layers::swiglu
}

/// GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415).
#[derive(Module, Debug, Default)]
pub struct Gelu {
    /// Whether the approximation with tanh is used.
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
        if self.approximate { layers::gelu_approximate(input) } else { layers::gelu(input) }
    }
}
