//! Attention.

use super::dropout::{drops, key as key_of_dropout};
use super::operation::{self, Operation, shaped};
use crate::attention::{Attention, Forward, Mask};
use crate::dropout;
use crate::host_tensor::{Host, is_host, tensor, values};
use burn::nn::Dropout;
use burn::tensor::{Bool, DType, Tensor, activation::softmax};
use std::sync::{Arc, OnceLock};

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
        let operator = Operator { sizes, mask: None, dropout: None, weights: None };
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
        weights: weights_wanted.then(Arc::default),
    };
    let inputs = [query.into_dispatch(), key.into_dispatch(), value.into_dispatch()];
    let context = operation::run(operator.clone(), inputs.clone());
    let weights = weights_wanted.then(|| operation::run(WeightsOperator(operator), inputs));
    (context, weights)
}

/// Attention with the inputs of the kernel.
#[derive(Clone, Debug)]
struct Operator {
    /// Batch, queries, keys, heads and width.
    sizes: [usize; 5],
    mask: Option<(Arc<Vec<bool>>, f32)>,
    dropout: Option<dropout::Dropout>,
    /// Receives the weights, if they are wanted.
    weights: Option<Arc<OnceLock<Weights>>>,
}

/// Attention weights, `[batch, heads, queries, keys]`.
#[derive(Clone, Debug)]
struct Weights {
    after_dropout: Host,
    /// Those before dropout, negative where they are dropped.
    signed: Host,
}

impl Operator {
    fn kernel(&self) -> Attention<'_> {
        let [batch, queries, keys, heads, width] = self.sizes;
        let mask = self.mask.as_ref().map(|(masked, fill)| Mask { masked, fill: *fill });
        Attention { batch, queries, keys, heads, width, mask, dropout: self.dropout }
    }

    /// Gradients of the inputs, from those of the context and, optionally, of the weights.
    fn gradients<const N: usize>(
        &self,
        inputs: [Host; N],
        weights: &Host,
        gradients: (&[f32], Option<&[f32]>),
        wanted: [bool; N],
    ) -> [Option<Host>; N] {
        let slices = inputs.each_ref().map(values);
        let mut gradients = self.kernel().backward(&slices, values(weights), gradients);
        shaped(std::array::from_fn(|at| std::mem::take(&mut gradients[at])), &inputs, wanted)
    }
}

impl<const N: usize> Operation<N, N> for Operator {
    /// [`Weights::signed`].
    type Saved = Host;

    fn forward(&self, inputs: [Host; N]) -> (Host, Self::Saved) {
        let [batch, queries, keys, heads, width] = self.sizes;
        let Forward { context, weights, signed } = self.kernel().forward(&inputs.each_ref().map(values));
        let of_weights = |values| tensor(values, [batch, heads, queries, keys]);
        let after_dropout = of_weights(weights);
        let signed = if self.dropout.is_some() { of_weights(signed) } else { after_dropout.clone() };
        if let Some(weights) = &self.weights {
            let _ = weights.set(Weights { after_dropout, signed: signed.clone() });
        }
        let output = match N {
            1 => tensor(context, [batch * queries, width]),
            _ => tensor(context, [batch, queries, width]),
        };
        (output, signed)
    }

    fn backward(&self, inputs: [Host; N], weights: Host, grad: Host, wanted: [bool; N]) -> [Option<Host>; N] {
        self.gradients(inputs, &weights, (values(&grad), None), wanted)
    }
}

/// The attention weights of an [`Operator`] that has computed them.
///
/// They are a separate operation, whose gradients are not computed if the weights are not used.
#[derive(Clone, Debug)]
struct WeightsOperator(Operator);

impl Operation<3, 3> for WeightsOperator {
    /// [`Weights::signed`].
    type Saved = Host;

    fn forward(&self, _: [Host; 3]) -> (Host, Host) {
        let weights = self.0.weights.as_ref().and_then(|weights| weights.get());
        let Weights { after_dropout, signed } = weights.expect("weights of the context").clone();
        (after_dropout, signed)
    }

    fn backward(&self, inputs: [Host; 3], weights: Host, grad: Host, wanted: [bool; 3]) -> [Option<Host>; 3] {
        let [batch, queries, _, _, width] = self.0.sizes;
        let context = vec![0.0; batch * queries * width];
        self.0.gradients(inputs, &weights, (&context, Some(values(&grad))), wanted)
    }
}
