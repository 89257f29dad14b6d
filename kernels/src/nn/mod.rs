//! Layers with the names, settings, fields and records of [`burn::nn`], for models whose speed on a CPU matters.
//!
//! A model changes its imports only: `use burn_ddp::nn::{Linear, LinearConfig}` in place of
//! `use burn::nn::{Linear, LinearConfig}`. In f32 on a CPU, layers use the kernels of this crate, elsewhere Burn's
//! operations. What is not replaced here is Burn's own. Weights move between both in either direction.
//!
//! A layer is a type around Burn's: fields of `layer` are read as before, and `layer.0` is Burn's. The functions of [`layers`](crate::layers) take both.

pub mod activation;
pub mod attention;
pub mod conv;
mod drop_in;
mod dropout;
mod layer_norm;
mod linear;
pub mod loss;
#[cfg(test)]
mod loss_tests;
pub mod pool;
mod recurrent;
#[cfg(test)]
mod sequence_tests;
#[cfg(test)]
mod tests;
pub mod transformer;

pub use activation::{
    Elu, EluConfig, Gelu, HardSigmoid, HardSigmoidConfig, HardSwish, LeakyRelu, LeakyReluConfig, Mish, PRelu,
    PReluConfig, Relu, Relu6, Selu, Sigmoid, Silu, Softplus, SoftplusConfig, SwiGlu, SwiGluConfig, Tanh,
};
pub use burn::nn::*;
pub use dropout::{Dropout, DropoutConfig};
pub use layer_norm::{
    GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig, LayerNorm, LayerNormConfig, RmsNorm,
    RmsNormConfig,
};
pub use linear::{Linear, LinearConfig};
pub use recurrent::{BiGru, BiGruConfig, BiLstm, BiLstmConfig, Gru, GruConfig, Lstm, LstmConfig};

pub use crate::layers::{
    MixedPrecisionEmbedding as Embedding, MixedPrecisionEmbeddingConfig as EmbeddingConfig,
};
