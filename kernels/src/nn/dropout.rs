//! Dropout.

use super::drop_in::drop_in;
use crate::layers;
use burn::tensor::Tensor;

drop_in! {
    /// Dropout (Srivastava et al. 2014): in training, sets values to zero with the probability `prob`, and divides the others by
    /// `1 − prob`.
    Dropout, DropoutConfig;
    new(prob: f64),
    with(),
    init(),
    /// Drops values of a tensor of any shape; see [`layers::dropout`].
    forward<D>(input: Tensor<D>) -> Tensor<D> = layers::dropout
}
