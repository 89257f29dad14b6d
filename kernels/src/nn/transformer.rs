//! Transformer encoder and decoder.

use super::attention::{MhaInput, context};
use super::drop_in::drop_in;
use super::layer_norm::normalise;
use crate::layers;
use burn::nn::activation::{Activation, ActivationConfig};
pub use burn::nn::transformer::*;
use burn::nn::{Initializer, LayerNorm, transformer};
use burn::tensor::{Bool, Device, Tensor};

drop_in! {
    /// Encoder of a transformer (Vaswani et al. 2017, arXiv 1706.03762).
    TransformerEncoder, TransformerEncoderConfig of transformer, layer_norm_eps: f64;
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

    /// Attention of queries to keys with these masks.
    fn attended(&self, query: Tensor<3>, key: Tensor<3>) -> MhaInput {
        let (mask_pad, mask_attn) = (self.mask_pad.clone(), self.mask_attn.clone());
        MhaInput { mask_pad, mask_attn, ..MhaInput::new(query, key.clone(), key) }
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
        self.layers.iter().fold(input.tensor.clone(), |x, layer| encode(layer, self.1, x, &input))
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

drop_in! {
    /// Decoder of a transformer (Vaswani et al. 2017, arXiv 1706.03762).
    TransformerDecoder, TransformerDecoderConfig of transformer, layer_norm_eps: f64;
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

/// Input of [`TransformerDecoder::forward`].
#[derive(Clone, Debug)]
pub struct TransformerDecoderInput {
    target: TransformerEncoderInput,
    memory: TransformerEncoderInput,
}

impl TransformerDecoderInput {
    /// Target `[batch, positions, d_model]`, and memory `[batch, keys, d_model]`, the output of an encoder.
    pub fn new(target: Tensor<3>, memory: Tensor<3>) -> Self {
        let [target, memory] = [target, memory].map(TransformerEncoderInput::new);
        Self { target, memory }
    }

    /// Sets which positions of the memory are not seen, `[batch, keys]`.
    pub fn memory_mask_pad(self, mask_pad: Tensor<2, Bool>) -> Self {
        Self { memory: self.memory.mask_pad(mask_pad), ..self }
    }

    /// Sets which positions of the memory each position does not see, `[batch, positions, keys]`.
    pub fn memory_mask_attn(self, mask_attn: Tensor<3, Bool>) -> Self {
        Self { memory: self.memory.mask_attn(mask_attn), ..self }
    }

    /// Sets which positions of the target are not seen, `[batch, positions]`.
    pub fn target_mask_pad(self, mask_pad: Tensor<2, Bool>) -> Self {
        Self { target: self.target.mask_pad(mask_pad), ..self }
    }

    /// Sets which positions of the target each position does not see, `[batch, positions, positions]`.
    pub fn target_mask_attn(self, mask_attn: Tensor<3, Bool>) -> Self {
        Self { target: self.target.mask_attn(mask_attn), ..self }
    }
}

impl From<TransformerDecoderInput> for transformer::TransformerDecoderInput {
    fn from(TransformerDecoderInput { target, memory }: TransformerDecoderInput) -> Self {
        let input = transformer::TransformerDecoderInput::new(target.tensor, memory.tensor);
        let input =
            target.mask_pad.into_iter().fold(input, transformer::TransformerDecoderInput::target_mask_pad);
        let input =
            target.mask_attn.into_iter().fold(input, transformer::TransformerDecoderInput::target_mask_attn);
        let input =
            memory.mask_pad.into_iter().fold(input, transformer::TransformerDecoderInput::memory_mask_pad);
        memory.mask_attn.into_iter().fold(input, transformer::TransformerDecoderInput::memory_mask_attn)
    }
}

impl TransformerDecoder {
    /// Maps the target `[batch, positions, d_model]` to the same shape.
    pub fn forward(&self, input: TransformerDecoderInput) -> Tensor<3> {
        self.layers.iter().fold(input.target.tensor.clone(), |x, layer| decode(layer, self.1, x, &input))
    }

    /// [`forward`](Self::forward) of one more position with a cache, by Burn's operations.
    pub fn forward_autoregressive_inference(
        &self,
        input: TransformerDecoderInput,
        cache: &mut TransformerDecoderAutoregressiveCache,
    ) -> Tensor<3> {
        self.0.forward_autoregressive_inference(input.into(), cache)
    }
}

/// A layer of the encoder.
fn encode(
    layer: &TransformerEncoderLayer,
    epsilon: f64,
    x: Tensor<3>,
    seen: &TransformerEncoderInput,
) -> Tensor<3> {
    let dropout = |x| layers::dropout(&layer.dropout, x);
    let norms = [&layer.norm_1, &layer.norm_2];
    residual(layer.norm_first, epsilon, norms, x, |sublayer, x| match sublayer {
        0 => dropout(context(&layer.mha, seen.attended(x.clone(), x))),
        _ => dropout(feed_forward(&layer.pwff, x)),
    })
}

/// A layer of the decoder.
fn decode(
    layer: &TransformerDecoderLayer,
    epsilon: f64,
    x: Tensor<3>,
    input: &TransformerDecoderInput,
) -> Tensor<3> {
    let TransformerDecoderInput { target, memory } = input;
    let dropout = |x| layers::dropout(&layer.dropout, x);
    let norms = [&layer.norm_1, &layer.norm_2, &layer.norm_3];
    residual(layer.norm_first, epsilon, norms, x, |sublayer, x| match sublayer {
        0 => dropout(context(&layer.self_attn, target.attended(x.clone(), x))),
        1 => dropout(context(&layer.cross_attn, memory.attended(x, memory.tensor.clone()))),
        _ => dropout(feed_forward(&layer.pwff, x)),
    })
}

/// Sublayers with residual connections, each followed by its norm.
///
/// With `norm_first`, a sublayer's input is normalised instead, by the norm of the sublayer before it, as in Burn.
fn residual<const N: usize>(
    norm_first: bool,
    epsilon: f64,
    norms: [&LayerNorm; N],
    x: Tensor<3>,
    sublayer: impl Fn(usize, Tensor<3>) -> Tensor<3>,
) -> Tensor<3> {
    (0..N).fold(x, |x, at| {
        if norm_first {
            x.clone() + sublayer(at, normalise(norms[(at + N - 1) % N], epsilon, x))
        } else {
            normalise(norms[at], epsilon, x.clone() + sublayer(at, x))
        }
    })
}

fn feed_forward(layer: &PositionWiseFeedForward, x: Tensor<3>) -> Tensor<3> {
    let x = layers::linear(&layer.linear_inner, x);
    let x = match &layer.activation {
        Activation::Gelu(gelu) if gelu.approximate => layers::gelu_approximate(x),
        Activation::Gelu(_) => layers::gelu(x),
        Activation::Relu(_) => layers::relu(x),
        other => other.forward(x),
    };
    layers::linear(&layer.linear_outer, layers::dropout(&layer.dropout, x))
}
