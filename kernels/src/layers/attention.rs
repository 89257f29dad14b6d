//! Causal self-attention.

use super::operation::{self, Operation};
use crate::attention::Attention;
use crate::host_tensor::{Host, is_host, tensor, values};
use burn::tensor::{DType, Tensor, activation::softmax};
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
        return operation::run(Attention { batch, time, heads, width }, [all.into_dispatch()]);
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

impl Operation<1, 1> for Attention {
    /// The attention weights.
    type Saved = Arc<Vec<f32>>;

    const READS: [usize; 1] = [0];

    fn forward(&self, [all]: [Host; 1]) -> (Host, Self::Saved) {
        let (output, weights) = Attention::forward(self, values(&all));
        (tensor(output, [self.batch * self.time, self.width]), Arc::new(weights))
    }

    fn backward(
        &self,
        [all]: [Host; 1],
        weights: Self::Saved,
        grad: Host,
        _: [bool; 1],
    ) -> [Option<Host>; 1] {
        let gradient = Attention::backward(self, values(&all), &weights, values(&grad));
        [Some(tensor(gradient, [self.batch * self.time, 3 * self.width]))]
    }
}
