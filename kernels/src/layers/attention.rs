//! Attention.

use super::dropout::{drops, key as key_of_dropout};
use super::operation::{self, Operation, shaped};
use crate::attention::{Attention, Forward, Mask};
use crate::dropout;
use crate::host_tensor::{Host, is_host, tensor, values};
use burn::nn::Dropout;
use burn::tensor::{Bool, DType, Tensor, activation::softmax};
use std::sync::Arc;

/// Causal self-attention without dropout.
///
/// `all` are queries, keys and values of all heads, `[batch × time, 3 × width]`, and the result is
/// `[batch × time, width]`.
///
/// # Panics
/// If `all` does not have this shape, or `width` is not a multiple of `heads`.
pub fn causal_attention(all: Tensor<2>, [batch, time]: [usize; 2], heads: usize) -> Tensor<2> {
    let width = all.dims()[1] / 3;
    if is_host(&all) {
        let sizes = [batch, time, time, heads, width];
        let operator = Operator { sizes, mask: None, dropout: None, weights_wanted: false };
        return operation::run(operator, [all.into_dispatch()]);
    }
    #[cfg(feature = "cuda")]
    if let Some(context) = crate::cuda::causal_attention(&all, [batch, time], heads) {
        return context;
    }
    causal_attention_with(all, [batch, time], heads, |weights| weights)
}

/// [`causal_attention`] with Burn's operations, in which `change` is applied to the attention weights
/// `[batch, heads, time, time]`.
///
/// For 16-bit tensors, the softmax is computed in f32.
pub fn causal_attention_with(
    all: Tensor<2>,
    [batch, time]: [usize; 2],
    heads: usize,
    change: impl FnOnce(Tensor<4>) -> Tensor<4>,
) -> Tensor<2> {
    let (width, head_width) = (all.dims()[1] / 3, all.dims()[1] / 3 / heads);
    let part = |number: usize| {
        let part = all.clone().narrow(1, number * width, width);
        part.reshape([batch, time, heads, head_width]).swap_dims(1, 2)
    };
    let (query, key, value) = (part(0), part(1), part(2)); // [batch, heads, time, head width]
    let dtype = all.dtype();
    let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let later = Tensor::<2>::full([time, time], f32::NEG_INFINITY, &all.device()).triu(1).cast(wide);
    let scores = query.mul_scalar((head_width as f64).powf(-0.5)).matmul(key.swap_dims(2, 3));
    let weights = change(softmax(scores.cast(wide) + later.unsqueeze(), 3).cast(dtype));
    weights.matmul(value).swap_dims(1, 2).reshape([batch * time, width])
}

/// Scores that are replaced before the softmax.
#[derive(Clone, Debug)]
pub struct AttentionMask {
    /// Whether a score is replaced, `[batch, queries, keys]`, or `[batch, 1, keys]` for all queries.
    pub masked: Tensor<3, Bool>,
    /// The value of these scores.
    pub fill: f32,
}

/// Attention of queries, `[batch, queries, width]`, to keys and values, `[batch, keys, width]`, in host memory.
///
/// Returns the context, `[batch, queries, width]`, and, if wanted, the attention weights after dropout,
/// `[batch, heads, queries, keys]`.
///
/// # Panics
/// If the inputs are not in f32 on the CPU, or `width` is not a multiple of `heads`.
pub fn attention(
    [query, key, value]: [Tensor<3>; 3],
    heads: usize,
    mask: Option<AttentionMask>,
    dropout: &Dropout,
    weights_wanted: bool,
) -> (Tensor<3>, Option<Tensor<4>>) {
    let ([batch, queries, width], [_, keys, _]) = (query.dims(), key.dims());
    let mask = mask.map(|mask| {
        let masked: Vec<bool> = mask.masked.into_data().iter().collect();
        (Arc::new(masked), mask.fill)
    });
    let operator = Operator {
        sizes: [batch, queries, keys, heads, width],
        mask,
        dropout: drops(dropout, &query).then(|| dropout::Dropout::new(dropout.prob, key_of_dropout())),
        weights_wanted,
    };
    let inputs = [query.into_dispatch(), key.into_dispatch(), value.into_dispatch()];
    if !weights_wanted {
        return (operation::run(operator, inputs), None);
    }
    let packed: Tensor<1> = operation::run(operator, inputs);
    let (context, weights) = (batch * queries * width, batch * heads * queries * keys);
    let weights = packed.clone().narrow(0, context, weights).reshape([batch, heads, queries, keys]);
    (packed.narrow(0, 0, context).reshape([batch, queries, width]), Some(weights))
}

/// Attention with the inputs of the kernel.
#[derive(Clone, Debug)]
struct Operator {
    /// Batch, queries, keys, heads and width.
    sizes: [usize; 5],
    mask: Option<(Arc<Vec<bool>>, f32)>,
    dropout: Option<dropout::Dropout>,
    /// Whether the output is all values of the context, followed by those of the weights.
    weights_wanted: bool,
}

impl Operator {
    fn kernel(&self) -> Attention<'_> {
        let [batch, queries, keys, heads, width] = self.sizes;
        let mask = self.mask.as_ref().map(|(masked, fill)| Mask { masked, fill: *fill });
        Attention { batch, queries, keys, heads, width, mask, dropout: self.dropout }
    }
}

impl<const N: usize> Operation<N, N> for Operator {
    /// The attention weights before dropout, negative where they are dropped.
    type Saved = Arc<Vec<f32>>;

    fn forward(&self, inputs: [Host; N]) -> (Host, Self::Saved) {
        let [batch, queries, _, _, width] = self.sizes;
        let Forward { mut context, weights, signed } = self.kernel().forward(&inputs.each_ref().map(values));
        let output = if self.weights_wanted {
            context.extend_from_slice(&weights);
            let len = context.len();
            tensor(context, [len])
        } else if N == 1 {
            tensor(context, [batch * queries, width])
        } else {
            tensor(context, [batch, queries, width])
        };
        (output, Arc::new(if self.dropout.is_some() { signed } else { weights }))
    }

    fn backward(
        &self,
        inputs: [Host; N],
        weights: Self::Saved,
        grad: Host,
        wanted: [bool; N],
    ) -> [Option<Host>; N] {
        let [batch, queries, _, _, width] = self.sizes;
        let (context, for_weights) = values(&grad).split_at(batch * queries * width);
        let gradients = (context, self.weights_wanted.then_some(for_weights));
        let mut gradients = self.kernel().backward(&inputs.each_ref().map(values), &weights, gradients);
        shaped(std::array::from_fn(|at| std::mem::take(&mut gradients[at])), &inputs, wanted)
    }
}
