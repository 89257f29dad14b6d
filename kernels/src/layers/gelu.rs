//! GELU as a Burn operation.

use crate::gelu;
use crate::host_tensor::{Host, contiguous, is_host, tensor, values};
use burn::backend::{
    Autodiff, Backend, Dispatch, Flex, TensorMetadata,
    autodiff::{
        NodeId,
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind, unary},
    },
    backend_extension,
    tensor::FloatTensor,
};
use burn::tensor::{Tensor, activation};

/// Computes `burn::tensor::activation::gelu(x)`.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if !is_host(&x) {
        return activation::gelu(x);
    }
    Tensor::from_dispatch(<Dispatch as GeluBackend>::kernel_gelu(x.into_dispatch()))
}

/// A Burn backend with the GELU of this crate.
#[backend_extension(Autodiff, Flex)]
pub trait GeluBackend: Backend {
    /// GELU of `x`, f32, of any shape.
    fn kernel_gelu(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl GeluBackend for Flex {
    fn kernel_gelu(x: Host) -> Host {
        let x = contiguous(x);
        tensor(gelu::forward(values(&x)), x.shape())
    }
}

#[derive(Debug)]
struct GeluBackward;

impl Backward<Flex, 1> for GeluBackward {
    type State = NodeId;

    fn backward(self, ops: Ops<NodeId, 1>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let x = contiguous(checkpointer.retrieve_node_output::<Host>(ops.state));
        unary::<Flex, _>(ops.parents, ops.node, grads, |grad| {
            tensor(gelu::backward(values(&x), values(&contiguous(grad))), x.shape())
        });
    }
}

impl<C: CheckpointStrategy> GeluBackend for Autodiff<Flex, C> {
    fn kernel_gelu(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let output = Flex::kernel_gelu(x.clone().into_primitive());
        match GeluBackward.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = prep.checkpoint(&x);
                prep.finish(state, output)
            }
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }
}
