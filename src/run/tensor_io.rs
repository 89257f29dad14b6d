//! Conversion of network outputs to plain numbers.

use burn::tensor::{Element, Tensor, kind::Basic};
use collective::device_error::read_data;

/// Reads the values of `tensor` in row-major order, converted to `E`.
///
/// # Errors
/// If the tensor cannot be read from its device.
pub fn values<E: Element, const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Result<Vec<E>, String> {
    let data = read_data(tensor).map_err(|error| error.to_string())?;
    data.convert::<E>().try_into_vec().map_err(|error| format!("{error:?}"))
}

/// Computes class probabilities from logits.
///
/// The largest logit is subtracted first to avoid overflow.
pub fn softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|logit| f64::from(logit - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}
