//! Embedding whose gradient is added in f32.

use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{EmbeddingConfig, Initializer};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, module::embedding};

/// Settings of a [`MixedPrecisionEmbedding`]: those of Burn's `EmbeddingConfig`, with the same defaults.
#[derive(Config, Debug)]
pub struct MixedPrecisionEmbeddingConfig {
    /// Number of vectors.
    pub n_embedding: usize,
    /// Length of each vector.
    pub d_model: usize,
    /// Initial weights.
    #[config(default = "Initializer::Normal{mean:0.0, std:1.0}")]
    pub initializer: Initializer,
}

impl MixedPrecisionEmbeddingConfig {
    /// Creates a layer.
    pub fn init(&self, device: &Device) -> MixedPrecisionEmbedding {
        let config = EmbeddingConfig::new(self.n_embedding, self.d_model);
        let weight = config.with_initializer(self.initializer.clone()).init(device).weight;
        MixedPrecisionEmbedding { weight }
    }
}

/// `burn::nn::Embedding` for training in 16 bits, with the same records.
///
/// The gradient of a vector is the sum over all its uses in the batch. Burn adds them in the type of the weights,
/// which is 16 bits in mixed precision: after about 256 similar summands in bf16, or 2048 in f16, the sum no longer
/// grows. Here vectors are looked up in f32 and then cast to the type of the weights, so that the sum is computed in
/// f32 and rounded once, as that of a linear layer. In f32, it is Burn's operation.
#[derive(Module, Debug)]
pub struct MixedPrecisionEmbedding {
    /// Vectors, `[n_embedding, d_model]`.
    pub weight: Param<Tensor<2>>,
}

impl MixedPrecisionEmbedding {
    /// Maps indices, `[batch, length]`, to their vectors, `[batch, length, d_model]`.
    pub fn forward(&self, indices: Tensor<2, Int>) -> Tensor<3> {
        let weight = self.weight.val();
        match weight.dtype() {
            dtype @ (DType::F16 | DType::BF16) => {
                embedding(weight.cast(FloatDType::F32), indices).cast(dtype)
            }
            _ => embedding(weight, indices),
        }
    }
}
