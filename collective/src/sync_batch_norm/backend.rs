//! SyncBatchNorm as one operation of a Burn backend, differentiable, and never repeated by gradient
//! checkpointing.

use super::{
    kernel::{self, Moments, Settings},
    passes::Statistics,
};
use crate::tensor::CollectiveBackend;
use burn::backend::{
    Autodiff, AutodiffBackend, Backend, Flex,
    autodiff::{
        NodeId,
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    backend_extension,
    tensor::FloatTensor,
};

/// A Burn backend that supports synchronised batch normalisation.
#[cfg_attr(feature = "cube", backend_extension(Autodiff, Flex, Cube))]
#[cfg_attr(not(feature = "cube"), backend_extension(Autodiff, Flex))]
pub trait SyncBatchNormBackend: CollectiveBackend {
    /// Normalises `x` of shape `[batch, channels, ...]`; also returns mean and variance over all ranks, `[channels]`.
    ///
    /// Mean and variance are constants for autodiff. If the group fails, the results are undefined and the group
    /// keeps the cause. The default is that of backends without autodiff.
    fn sync_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        settings: Settings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let (output, moments) = kernel::forward::<Self>(x, gamma, beta, &settings);
        (output, moments.mean, moments.variance)
    }
}

impl SyncBatchNormBackend for Flex {}
#[cfg(feature = "cube")]
impl SyncBatchNormBackend for burn::backend::Cube {}

#[derive(Debug)]
struct Step;

#[derive(Clone, Debug)]
struct State<B: Backend> {
    x: NodeId,
    gamma: NodeId,
    statistics: Statistics<B>,
    settings: Settings,
}

impl<B: CollectiveBackend> Backward<B, 3> for Step {
    type State = State<B>;

    fn backward(self, ops: Ops<State<B>, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let State { x, gamma, statistics, settings } = ops.state;
        let grad = grads.consume::<B>(&ops.node);
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
        let gamma = checkpointer.retrieve_node_output::<FloatTensor<B>>(gamma);
        let for_input = ops.parents[0].is_some();
        let all = kernel::backward::<B>(x, gamma, grad, statistics, &settings, for_input);
        for (node, grad) in ops.parents.into_iter().zip(all) {
            if let (Some(node), Some(grad)) = (node, grad) {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

impl<B: CollectiveBackend, C: CheckpointStrategy> SyncBatchNormBackend for Autodiff<B, C> {
    fn sync_batch_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        settings: Settings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let prep = Step.prepare::<C>([x.node(), gamma.node(), beta.node()]).compute_bound().stateful();
        let forward = |x: FloatTensor<Self>, gamma: FloatTensor<Self>, beta: FloatTensor<Self>| {
            let (x, gamma, beta) = (x.into_primitive(), gamma.into_primitive(), beta.into_primitive());
            kernel::forward::<B>(x, gamma, beta, &settings)
        };
        let (output, mean, variance) = match prep {
            OpsKind::Tracked(mut prep) => {
                let (x_id, gamma_id) = (prep.checkpoint(&x), prep.checkpoint(&gamma));
                let (output, Moments { mean, variance, statistics }) = forward(x, gamma, beta);
                let state = State { x: x_id, gamma: gamma_id, statistics, settings };
                (prep.finish(state, output), mean, variance)
            }
            OpsKind::UnTracked(prep) => {
                let (output, Moments { mean, variance, .. }) = forward(x, gamma, beta);
                (prep.finish(output), mean, variance)
            }
        };
        let constant = <Self as AutodiffBackend>::from_inner;
        (output, constant(mean), constant(variance))
    }
}
