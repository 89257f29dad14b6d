//! A transformer block: attention and MLP, each after LayerNorm and added to its input.

use super::{
    attention::Attention,
    common::{Sizes, linear, norm},
};
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Device, Tensor};
use kernels::layers;

/// Pre-norm transformer block.
#[derive(Module, Debug)]
pub struct Block {
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    /// Creates a block. `std` are the deviations of the weights and of those before a residual sum.
    pub fn new(sizes: Sizes, std: [f64; 2], device: &Device) -> Self {
        let norm = || LayerNormConfig::new(sizes.width).init(device);
        Self {
            ln_1: norm(),
            attn: Attention::new(sizes, std, device),
            ln_2: norm(),
            mlp: Mlp::new(sizes, std, device),
        }
    }

    /// Maps `[batch * time, width]` to the same shape.
    pub fn forward(&self, x: Tensor<2>, size: [usize; 2]) -> Tensor<2> {
        let x = x.clone() + self.attn.forward(norm(&self.ln_1, x), size);
        x.clone() + self.mlp.forward(norm(&self.ln_2, x))
    }
}

/// Two linear layers with four times the width between them.
#[derive(Module, Debug)]
struct Mlp {
    c_fc: Linear,
    c_proj: Linear,
    dropout: Dropout,
}

impl Mlp {
    fn new(Sizes { width, dropout, .. }: Sizes, [std, residual_std]: [f64; 2], device: &Device) -> Self {
        Self {
            c_fc: linear([width, 4 * width], std, device),
            c_proj: linear([4 * width, width], residual_std, device),
            dropout: DropoutConfig::new(dropout).init(),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = layers::gelu(layers::linear(&self.c_fc, x));
        layers::dropout(&self.dropout, layers::linear(&self.c_proj, x))
    }
}
