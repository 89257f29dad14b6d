//! Activation functions.

use super::drop_in::drop_in;
use crate::layers;
use burn::module::Module;
pub use burn::nn::activation::*;
use burn::nn::{Initializer, LinearLayout};
use burn::tensor::{Device, Tensor};

/// Modules without settings that apply a function of [`layers`].
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $function:path;)*) => {
        $(
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
        )*
    };
}

functions! {
    /// The larger of zero and each value.
    Relu = layers::relu;
    /// SiLU or swish, x σ(x) (Elfwing et al. 2017, arXiv 1702.03118).
    Silu = layers::silu;
    /// The logistic function, 1 / (1 + e^−x).
    Sigmoid = layers::sigmoid;
    /// Hyperbolic tangent.
    Tanh = layers::tanh;
    /// ReLU up to 6.
    Relu6 = layers::relu6;
    /// Mish, x tanh(ln(1 + e^x)) (Misra 2019, arXiv 1908.08681).
    Mish = layers::mish;
    /// Hard swish (Howard et al. 2019, arXiv 1905.02244).
    HardSwish = layers::hard_swish;
    /// SELU (Klambauer et al. 2017, arXiv 1706.02515).
    Selu = layers::selu;
}

drop_in! {
    /// ELU, x or α (e^x − 1) (Clevert et al. 2015, arXiv 1511.07289).
    Elu, EluConfig;
    new(),
    with(with_alpha: f64),
    init(),
    /// Applies the function to a tensor of any shape.
    forward<D>(input: Tensor<D>) -> Tensor<D> = layers::elu
}

drop_in! {
    /// Softplus, ln(1 + e^βx) / β; x where βx is above `threshold`.
    Softplus, SoftplusConfig;
    new(),
    with(with_beta: f64, with_threshold: f64),
    init(),
    /// Applies the function to a tensor of any shape.
    forward<D>(input: Tensor<D>) -> Tensor<D> = layers::softplus
}

drop_in! {
    /// α x + β between 0 and 1.
    HardSigmoid, HardSigmoidConfig;
    new(),
    with(with_alpha: f64, with_beta: f64),
    init(),
    /// Applies the function to a tensor of any shape.
    forward<D>(input: Tensor<D>) -> Tensor<D> = layers::hard_sigmoid
}

drop_in! {
    /// Leaky ReLU (Maas et al. 2013): multiplies negative values by `negative_slope`.
    LeakyRelu, LeakyReluConfig;
    new(),
    with(with_negative_slope: f64),
    init(),
    /// Applies the function to a tensor of any shape.
    forward<D>(input: Tensor<D>) -> Tensor<D> = layers::leaky_relu
}

drop_in! {
    /// PReLU (He et al. 2015, arXiv 1502.01852): a leaky ReLU with learned slopes, one or one for each channel.
    PRelu, PReluConfig;
    new(),
    with(with_num_parameters: usize, with_alpha: f64),
    init(device: &Device),
    /// Applies the function to `[batch, channels, …]`; see [`layers::prelu`].
    forward<D>(input: Tensor<D>) -> Tensor<D> = layers::prelu
}

drop_in! {
    /// SwiGLU (Shazeer 2020, arXiv 2002.05202): `silu(x × inner) · (x × outer)`.
    SwiGlu, SwiGluConfig;
    new(d_input: usize, d_output: usize),
    with(with_bias: bool, with_initializer: Initializer, with_layout: LinearLayout),
    init(device: &Device),
    /// Maps `[…, d_input]` to `[…, d_output]`; see [`layers::swiglu`].
    forward<D>(input: Tensor<D>) -> Tensor<D> = layers::swiglu
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
