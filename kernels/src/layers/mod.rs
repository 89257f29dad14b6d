//! Burn layers on the CPU kernels of this crate: convolutions, pooling, dropout, linear and recurrent layers, normalisation,
//! activation functions, attention and losses. [`MixedPrecisionEmbedding`] uses Burn's operations. With the feature
//! `cuda`, cross-entropy and LayerNorm also have CUDA kernels.
//!
//! They are functions over Burn's layers, so that a model keeps its types, parameters and parameter names:
//! `conv_relu(&self.conv, x)` computes `relu(self.conv.forward(x))`. Each function uses a kernel where one
//! applies (f32, and the conditions in its documentation) and Burn's operation otherwise. Convolutions and
//! LayerNorm compute 16-bit tensors in f32.
//!
//! Each forward pass calls `Param::val` once per parameter, because every call counts as a use: the reduction of
//! gradients starts when as many gradients as uses have arrived. Device and shape are read from `&*param`.

mod activation;
mod attention;
mod conv;
mod cross_entropy;
mod dropout;
mod embedding;
mod layer_norm;
mod linear;
mod loss;
pub mod operation;
pub(crate) mod padding;
mod pool;
mod recurrent;

pub use activation::{
    elu, gelu, gelu_approximate, hard_sigmoid, hard_swish, leaky_relu, mish, prelu, relu, relu6, selu,
    sigmoid, silu, softplus, swiglu, tanh,
};
pub use attention::{AttentionMask, attention, causal_attention, causal_attention_with};
pub use conv::{conv, conv_relu, conv_relu_max_pool, conv_transpose, conv_transpose1d, conv1d};
pub use cross_entropy::{cross_entropy, cross_entropy_totals};
pub use dropout::dropout;
pub use embedding::{MixedPrecisionEmbedding, MixedPrecisionEmbeddingConfig};
pub use layer_norm::{group_norm, instance_norm, layer_norm, rms_norm};
pub use linear::linear;
pub use loss::{binary_cross_entropy, huber_loss, lp_loss, mse_loss, smooth_l1_loss};
pub use pool::{
    adaptive_avg_pool, adaptive_avg_pool1d, avg_pool, avg_pool1d, max_pool, max_pool1d, relu_max_pool,
    relu_max_pool_windows,
};
pub use recurrent::{bi_gru, bi_lstm, gru, lstm};

#[cfg(test)]
mod transformer_tests;
