//! Sizes and layers that attention, blocks and the network share.

use burn::nn::{Initializer, LayerNorm, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use kernels::layers;

/// The default of Burn's `LayerNormConfig` and PyTorch; [`LayerNorm`] does not give access to it.
const EPSILON: f64 = 1e-5;

/// Sizes of a block.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub width: usize,
    pub heads: usize,
    pub dropout: f64,
}

/// Computes `layer.forward(x)`.
pub fn norm(layer: &LayerNorm, x: Tensor<2>) -> Tensor<2> {
    match &layer.beta {
        Some(beta) => layers::layer_norm(x, layer.gamma.val(), beta.val(), EPSILON),
        None => layer.forward(x),
    }
}

/// A linear layer with normally distributed weights and a bias of zeros.
pub fn linear([from, to]: [usize; 2], std: f64, device: &Device) -> Linear {
    let config = LinearConfig::new(from, to).with_initializer(Initializer::Normal { mean: 0.0, std });
    Linear { bias: Some(Initializer::Zeros.init([to], device)), ..config.with_bias(false).init(device) }
}
