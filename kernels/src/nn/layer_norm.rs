//! Layer, RMS, group and instance normalisation.

use super::drop_in::drop_in;
use crate::layers;
use burn::tensor::{Device, Tensor};

drop_in! {
    /// Layer normalisation (Ba et al. 2016, arXiv 1607.06450) over the last dimension.
    LayerNorm, LayerNormConfig, epsilon: f64;
    new(d_model: usize),
    with(with_epsilon: f64, with_bias: bool),
    init(device: &Device)
}

impl LayerNorm {
    /// Normalises `[…, d_model]`; see [`layers::layer_norm`].
    ///
    /// # Panics
    /// If the last dimension is not as long as `gamma`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        normalise(&self.0, self.1, input)
    }
}

/// `layer.forward(x)` of a layer with this epsilon.
pub(super) fn normalise<const D: usize>(
    layer: &burn::nn::LayerNorm,
    epsilon: f64,
    x: Tensor<D>,
) -> Tensor<D> {
    let gamma = layer.gamma.val();
    let beta = layer.beta.as_ref().map_or_else(|| gamma.zeros_like(), |beta| beta.val());
    layers::layer_norm(x, gamma, beta, epsilon)
}

drop_in! {
    /// RMS normalisation (Zhang and Sennrich 2019, arXiv 1910.07467) over the last dimension.
    RmsNorm, RmsNormConfig;
    new(d_model: usize),
    with(with_epsilon: f64),
    init(device: &Device),
    /// Normalises `[…, d_model]`; see [`layers::rms_norm`].
    forward<D>(input: Tensor<D>) -> Tensor<D> = layers::rms_norm
}

drop_in! {
    /// Group normalisation (Wu and He 2018, arXiv 1803.08494).
    GroupNorm, GroupNormConfig;
    new(num_groups: usize, num_channels: usize),
    with(with_epsilon: f64, with_affine: bool),
    init(device: &Device),
    /// Normalises `[batch, num_channels, …]`; see [`layers::group_norm`].
    forward<D>(input: Tensor<D>) -> Tensor<D> = layers::group_norm
}

drop_in! {
    /// Instance normalisation (Ulyanov et al. 2016, arXiv 1607.08022).
    InstanceNorm, InstanceNormConfig;
    new(num_channels: usize),
    with(with_epsilon: f64, with_affine: bool),
    init(device: &Device),
    /// Normalises each channel of `[batch, num_channels, …]`; see [`layers::instance_norm`].
    forward<D>(input: Tensor<D>) -> Tensor<D> = layers::instance_norm
}
