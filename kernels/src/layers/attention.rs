//! Causal self-attention as a Burn operation.

use crate::attention::Attention;
use crate::host_tensor::{Host, contiguous, is_host, tensor, values};
use burn::backend::{
    Autodiff, Backend, Dispatch, Flex,
    autodiff::{
        NodeId,
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind, unary},
    },
    backend_extension,
    tensor::FloatTensor,
};
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
        let with = Attention { batch, time, heads, width };
        return Tensor::from_dispatch(<Dispatch as AttentionBackend>::kernel_causal_attention(
            all.into_dispatch(),
            with,
        ));
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

/// A Burn backend with the attention of this crate.
#[backend_extension(Autodiff, Flex)]
pub trait AttentionBackend: Backend {
    /// Attention over `all`, `[batch × time, 3 × width]`, f32.
    fn kernel_causal_attention(all: FloatTensor<Self>, with: Attention) -> FloatTensor<Self>;
}

fn forward(all: Host, with: Attention) -> (Host, Vec<f32>) {
    let (output, weights) = with.forward(values(&contiguous(all)));
    (tensor(output, [with.batch * with.time, with.width]), weights)
}

impl AttentionBackend for Flex {
    fn kernel_causal_attention(all: Host, with: Attention) -> Host {
        forward(all, with).0
    }
}

#[derive(Debug)]
struct AttentionBackward;

impl Backward<Flex, 1> for AttentionBackward {
    type State = (NodeId, Arc<Vec<f32>>, Attention);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (node, weights, with) = ops.state;
        let all = contiguous(checkpointer.retrieve_node_output::<Host>(node));
        unary::<Flex, _>(ops.parents, ops.node, grads, |grad| {
            let gradient = with.backward(values(&all), &weights, values(&contiguous(grad)));
            tensor(gradient, [with.batch * with.time, 3 * with.width])
        });
    }
}

impl<C: CheckpointStrategy> AttentionBackend for Autodiff<Flex, C> {
    fn kernel_causal_attention(all: FloatTensor<Self>, with: Attention) -> FloatTensor<Self> {
        let (output, weights) = forward(all.clone().into_primitive(), with);
        match AttentionBackward.prepare::<C>([all.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = prep.checkpoint(&all);
                prep.finish((state, Arc::new(weights), with), output)
            }
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }
}
