//! Attention.

use super::dropout::{drops, key as key_of_dropout};
use super::operation::{self, shaped};
use crate::attention::{Attention, Forward, Mask};
use crate::dropout;
use crate::host_tensor::{Host, is_host, tensor, values};
use burn::nn::Dropout;
use burn::tensor::{Bool, DType, Tensor, activation::softmax};

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
        let kernel = Attention { batch, queries: time, keys: time, heads, width, mask: None, dropout: None };
        return operation::run([all.into_dispatch()], move |[all]| {
            let Forward { context, weights, .. } = kernel.forward(&[values(&all)]);
            let context = tensor(context, [batch * time, width]);
            (context, move |all: [Host; 1], grad: Host, wanted| {
                gradients(&kernel, all, &weights, (values(&grad), None), wanted)
            })
        });
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
    let kernel = Attention {
        batch,
        queries,
        keys,
        heads,
        width,
        mask: mask.map(|mask| Mask { masked: mask.masked.into_data().iter().collect(), fill: mask.fill }),
        dropout: drops(dropout, &query).then(|| dropout::Dropout::new(dropout.prob, key_of_dropout())),
    };
    let inputs = [query.into_dispatch(), key.into_dispatch(), value.into_dispatch()];
    let mut weights = None;
    let context = operation::run(inputs.clone(), |inputs: [Host; 3]| {
        let forward = kernel.forward(&inputs.each_ref().map(values));
        let of_weights = |values| tensor(values, [batch, heads, queries, keys]);
        let after_dropout = of_weights(forward.weights);
        // Those before dropout, negative where they are dropped.
        let signed =
            if kernel.dropout.is_some() { of_weights(forward.signed) } else { after_dropout.clone() };
        weights = weights_wanted.then(|| (after_dropout, signed.clone()));
        let kernel = kernel.clone();
        let backward = move |inputs: [Host; 3], grad: Host, wanted: [bool; 3]| {
            gradients(&kernel, inputs, values(&signed), (values(&grad), None), wanted)
        };
        (tensor(forward.context, [batch, queries, width]), backward)
    });
    // A separate operation, whose gradients are not computed if the weights are not used.
    let weights = weights.map(|(after_dropout, signed)| {
        operation::run(inputs, move |_: [Host; 3]| {
            (after_dropout, move |inputs: [Host; 3], grad: Host, wanted| {
                let context = vec![0.0; batch * queries * width];
                gradients(&kernel, inputs, values(&signed), (&context, Some(values(&grad))), wanted)
            })
        })
    });
    (context, weights)
}

/// Gradients of the inputs, from those of the context and, optionally, of the weights.
fn gradients<const N: usize>(
    kernel: &Attention,
    inputs: [Host; N],
    weights: &[f32],
    gradients: (&[f32], Option<&[f32]>),
    wanted: [bool; N],
) -> [Option<Host>; N] {
    let slices = inputs.each_ref().map(values);
    let mut gradients = kernel.backward(&slices, weights, gradients);
    shaped(std::array::from_fn(|at| std::mem::take(&mut gradients[at])), &inputs, wanted)
}
