//! Dropout.

use super::drop_in::drop_in;
use crate::layers;
use burn::tensor::Tensor;

drop_in! {
    /// Dropout (Srivastava et al. 2014): in training, sets values to zero with the probability `prob`, and divides the others by
    /// `1 − prob`.
    Dropout: burn::nn::Dropout;
    DropoutConfig: burn::nn::DropoutConfig,
    new(prob: f64),
    with(),
    init()
}

impl Dropout {
    /// Drops values of a tensor of any shape; see [`layers::dropout`].
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        layers::dropout(&self.0, input)
    }
}
