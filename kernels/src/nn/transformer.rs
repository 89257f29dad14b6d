//! Transformer encoder.

use super::attention::{MhaInput, context};
use super::drop_in::drop_in;
use super::layer_norm::normalise;
use crate::layers;
use burn::nn::activation::{Activation, ActivationConfig};
pub use burn::nn::transformer::*;
use burn::nn::{Initializer, transformer};
use burn::tensor::{Bool, Device, Tensor};

drop_in! {
    /// Encoder of a transformer (Vaswani et al. 2017, arXiv 1706.03762).
    TransformerEncoder: transformer::TransformerEncoder, layer_norm_eps: f64;
    TransformerEncoderConfig: transformer::TransformerEncoderConfig,
    new(d_model: usize, d_ff: usize, n_heads: usize, n_layers: usize),
    with(
        with_dropout: f64,
        with_norm_first: bool,
        with_quiet_softmax: bool,
        with_initializer: Initializer,
        with_activation: ActivationConfig,
        with_layer_norm_eps: f64
    ),
    init(device: &Device)
}

/// Input of [`TransformerEncoder::forward`].
#[derive(Clone, Debug)]
pub struct TransformerEncoderInput {
    tensor: Tensor<3>,
    mask_pad: Option<Tensor<2, Bool>>,
    mask_attn: Option<Tensor<3, Bool>>,
}

impl TransformerEncoderInput {
    /// Input `[batch, positions, d_model]`.
    pub fn new(tensor: Tensor<3>) -> Self {
        Self { tensor, mask_pad: None, mask_attn: None }
    }

    /// Sets which positions are not seen, `[batch, positions]`.
    pub fn mask_pad(self, mask_pad: Tensor<2, Bool>) -> Self {
        Self { mask_pad: Some(mask_pad), ..self }
    }

    /// Sets which positions each position does not see, `[batch, positions, positions]`.
    pub fn mask_attn(self, mask_attn: Tensor<3, Bool>) -> Self {
        Self { mask_attn: Some(mask_attn), ..self }
    }
}

impl From<TransformerEncoderInput> for transformer::TransformerEncoderInput {
    fn from(TransformerEncoderInput { tensor, mask_pad, mask_attn }: TransformerEncoderInput) -> Self {
        let input = transformer::TransformerEncoderInput::new(tensor);
        let input = mask_pad.into_iter().fold(input, transformer::TransformerEncoderInput::mask_pad);
        mask_attn.into_iter().fold(input, transformer::TransformerEncoderInput::mask_attn)
    }
}

impl TransformerEncoder {
    /// Maps `[batch, positions, d_model]` to the same shape.
    pub fn forward(&self, input: TransformerEncoderInput) -> Tensor<3> {
        let TransformerEncoderInput { tensor, mask_pad, mask_attn } = input;
        self.layers.iter().fold(tensor, |x, layer| {
            encode(layer, self.1, x, |x| MhaInput {
                mask_pad: mask_pad.clone(),
                mask_attn: mask_attn.clone(),
                ..MhaInput::self_attn(x)
            })
        })
    }

    /// [`forward`](Self::forward) of one more position with a cache, by Burn's operations.
    pub fn forward_autoregressive_inference(
        &self,
        input: TransformerEncoderInput,
        cache: &mut TransformerEncoderAutoregressiveCache,
    ) -> Tensor<3> {
        self.0.forward_autoregressive_inference(input.into(), cache)
    }
}

/// A layer of the encoder; `norm_1` belongs to the feed-forward network, as in Burn.
fn encode(
    layer: &TransformerEncoderLayer,
    epsilon: f64,
    x: Tensor<3>,
    masked: impl Fn(Tensor<3>) -> MhaInput,
) -> Tensor<3> {
    let dropout = |x| layers::dropout(&layer.dropout, x);
    let attend = |x| dropout(context(&layer.mha, masked(x)));
    let transform = |x| dropout(feed_forward(&layer.pwff, x));
    let [norm_1, norm_2] = [&layer.norm_1, &layer.norm_2].map(|norm| move |x| normalise(norm, epsilon, x));
    if layer.norm_first {
        let x = x.clone() + attend(norm_2(x));
        x.clone() + transform(norm_1(x))
    } else {
        let x = norm_1(x.clone() + attend(x));
        norm_2(x.clone() + transform(x))
    }
}

fn feed_forward(layer: &PositionWiseFeedForward, x: Tensor<3>) -> Tensor<3> {
    let x = layers::linear(&layer.linear_inner, x);
    let x = match &layer.activation {
        Activation::Gelu(gelu) if !gelu.approximate => layers::gelu(x),
        Activation::Relu(_) => layers::relu(x),
        other => other.forward(x),
    };
    layers::linear(&layer.linear_outer, layers::dropout(&layer.dropout, x))
}
