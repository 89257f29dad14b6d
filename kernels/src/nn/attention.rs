//! Multi-head attention.

use super::drop_in::drop_in;
use crate::host_tensor::is_host;
use crate::layers::{self, AttentionMask};
pub use burn::nn::attention::*;
use burn::nn::{Initializer, attention};
use burn::tensor::{Bool, Device, Tensor, assert_shape};

drop_in! {
    /// Multi-head attention (Vaswani et al. 2017, arXiv 1706.03762).
    MultiHeadAttention, MultiHeadAttentionConfig of attention;
    new(d_model: usize, n_heads: usize),
    with(
        with_dropout: f64,
        with_min_float: f64,
        with_quiet_softmax: bool,
        with_initializer: Initializer,
        with_key_bias: bool,
        with_value_bias: bool,
        with_query_bias: bool,
        with_output_bias: bool
    ),
    init(device: &Device)
}

/// Input of [`MultiHeadAttention::forward`].
#[derive(Clone, Debug)]
pub struct MhaInput {
    pub(super) query: Tensor<3>,
    pub(super) key: Tensor<3>,
    pub(super) value: Tensor<3>,
    pub(super) mask_pad: Option<Tensor<2, Bool>>,
    pub(super) mask_attn: Option<Tensor<3, Bool>>,
}

impl MhaInput {
    /// Attention of `tensor`, `[batch, positions, d_model]`, to itself.
    pub fn self_attn(tensor: Tensor<3>) -> Self {
        Self::new(tensor.clone(), tensor.clone(), tensor)
    }

    /// Attention of queries, `[batch, queries, d_model]`, to keys and values, `[batch, keys, d_model]`.
    pub fn new(query: Tensor<3>, key: Tensor<3>, value: Tensor<3>) -> Self {
        Self { query, key, value, mask_pad: None, mask_attn: None }
    }

    /// Sets which keys are not seen, `[batch, keys]`.
    pub fn mask_pad(self, mask_pad: Tensor<2, Bool>) -> Self {
        Self { mask_pad: Some(mask_pad), ..self }
    }

    /// Sets which keys each query does not see, `[batch, queries, keys]`.
    pub fn mask_attn(self, mask_attn: Tensor<3, Bool>) -> Self {
        Self { mask_attn: Some(mask_attn), ..self }
    }
}

impl From<MhaInput> for attention::MhaInput {
    fn from(MhaInput { query, key, value, mask_pad, mask_attn }: MhaInput) -> Self {
        let input = attention::MhaInput::new(query, key, value);
        let input = mask_pad.into_iter().fold(input, attention::MhaInput::mask_pad);
        mask_attn.into_iter().fold(input, attention::MhaInput::mask_attn)
    }
}

impl MultiHeadAttention {
    /// Context `[batch, queries, d_model]` and attention weights `[batch, n_heads, queries, keys]`.
    ///
    /// The kernel supports the usual softmax in f32.
    ///
    /// # Panics
    /// If a last dimension is not `d_model`, or batches or lengths of keys and values differ.
    pub fn forward(&self, input: MhaInput) -> MhaOutput {
        match attend(&self.0, &input, true) {
            Some((context, Some(weights))) => MhaOutput { weights, context },
            _ => self.0.forward(input.into()),
        }
    }

    /// [`forward`](Self::forward) with a cache, by Burn's operations.
    pub fn forward_cache(&self, input: MhaInput, cache: &mut MhaCache) -> MhaOutput {
        self.0.forward_cache(input.into(), cache)
    }
}

/// Context, and the attention weights if wanted; `None` where the kernel does not apply.
fn attend(
    layer: &attention::MultiHeadAttention,
    input: &MhaInput,
    weights_wanted: bool,
) -> Option<(Tensor<3>, Option<Tensor<4>>)> {
    let MhaInput { query, key, value, mask_pad, mask_attn } = input;
    if layer.quiet_softmax || !is_host(query) || !is_host(&*layer.query.weight) {
        return None;
    }
    let [batch, queries, _] = query.dims();
    let [_, keys, _] = key.dims();
    assert_shape!(query, [_, _, layer.d_model]);
    assert_shape!(key, [batch, _, layer.d_model]);
    assert_shape!(value, [batch, keys, layer.d_model]);
    let pad = mask_pad.clone().map(|mask| mask.unsqueeze_dim::<3>(1));
    let whole = |mask: Tensor<3, Bool>| mask.expand([batch, queries, keys]);
    let mask = match (pad, mask_attn.clone()) {
        (Some(pad), Some(mask)) => Some(whole(pad).bool_or(whole(mask))),
        (pad, mask) => pad.or(mask.map(whole)),
    };
    let mask = mask.map(|masked| AttentionMask { masked, fill: layer.min_float as f32 });
    let inputs = [(&layer.query, query), (&layer.key, key), (&layer.value, value)]
        .map(|(linear, x)| layers::linear(linear, x.clone()));
    let (context, weights) = layers::attention(inputs, layer.n_heads, mask, &layer.dropout, weights_wanted);
    Some((layers::linear(&layer.output, context), weights))
}

/// The context of [`MultiHeadAttention::forward`].
pub(super) fn context(layer: &attention::MultiHeadAttention, input: MhaInput) -> Tensor<3> {
    match attend(layer, &input, false) {
        Some((context, _)) => context,
        None => layer.forward(input.into()).context,
    }
}
