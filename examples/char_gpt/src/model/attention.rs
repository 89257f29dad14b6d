//! Causal multi-head self-attention.

use super::common::{Sizes, linear};
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear};
use burn::tensor::{Device, Tensor};
use kernels::layers;

/// Self-attention in which a position sees itself and earlier ones (Vaswani et al. 2017).
#[derive(Module, Debug)]
pub struct Attention {
    /// Queries, keys and values of all heads.
    c_attn: Linear,
    c_proj: Linear,
    attn_dropout: Dropout,
    resid_dropout: Dropout,
    heads: usize,
}

impl Attention {
    /// Creates the layer. `std` are the deviations of the weights of `c_attn` and `c_proj`.
    pub fn new(
        Sizes { width, heads, dropout }: Sizes,
        [std, residual_std]: [f64; 2],
        device: &Device,
    ) -> Self {
        let dropout = || DropoutConfig::new(dropout).init();
        Self {
            c_attn: linear([width, 3 * width], std, device),
            c_proj: linear([width, width], residual_std, device),
            attn_dropout: dropout(),
            resid_dropout: dropout(),
            heads,
        }
    }

    /// Maps `[batch * time, width]` to the same shape.
    pub fn forward(&self, x: Tensor<2>, size: [usize; 2]) -> Tensor<2> {
        let all = layers::linear(&self.c_attn, x); // [batch * time, 3 * width]
        let drops = self.attn_dropout.prob > 0.0 && all.device().is_autodiff();
        let x = match drops {
            true => layers::causal_attention_with(all, size, self.heads, |weights| {
                layers::dropout(&self.attn_dropout, weights)
            }),
            false => layers::causal_attention(all, size, self.heads),
        };
        layers::dropout(&self.resid_dropout, layers::linear(&self.c_proj, x))
    }
}
