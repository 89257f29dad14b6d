//! The linear layer as a Burn operation.

use crate::host_tensor::{Host, contiguous, is_host, tensor, values};
use crate::linear;
use burn::backend::{
    Autodiff, Backend, Dispatch, Flex, TensorMetadata,
    autodiff::{
        NodeId,
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    backend_extension,
    tensor::FloatTensor,
};
use burn::nn::Linear;
use burn::tensor::Tensor;

/// Computes `layer.forward(x)`. The kernel supports layers with a bias.
pub fn linear(layer: &Linear, x: Tensor<2>) -> Tensor<2> {
    let Some(bias) = layer.bias.as_ref().filter(|_| is_host(&x) && is_host(&*layer.weight)) else {
        return layer.forward(x);
    };
    let [x, weight] = [x, layer.weight.val()].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as LinearBackend>::kernel_linear(x, weight, bias.val().into_dispatch()))
}

/// A Burn backend with the linear layer of this crate.
#[backend_extension(Autodiff, Flex)]
pub trait LinearBackend: Backend {
    /// Linear layer for `x`, `[batch, inputs]`, `weight`, `[inputs, outputs]`, and `bias`, `[outputs]`, all f32.
    fn kernel_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

impl LinearBackend for Flex {
    fn kernel_linear(x: Host, weight: Host, bias: Host) -> Host {
        let shape = [x.shape()[0], bias.shape()[0]];
        let [x, weight, bias] = [x, weight, bias].map(contiguous);
        tensor(linear::forward(values(&x), values(&weight), values(&bias)), shape)
    }
}

#[derive(Debug)]
struct LinearBackward;

impl Backward<Flex, 3> for LinearBackward {
    type State = [NodeId; 2];

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let [x_node, weight_node, bias_node] = ops.parents;
        let [x, weight] = ops.state.map(|node| contiguous(checkpointer.retrieve_node_output::<Host>(node)));
        let grad = contiguous(grads.consume::<Flex>(&ops.node));
        let [batch, inputs, outputs] = [x.shape()[0], x.shape()[1], grad.shape()[1]];
        if weight_node.is_some() || bias_node.is_some() {
            let (for_weight, for_bias) =
                linear::gradients(values(&x), values(&grad), [batch, inputs, outputs]);
            if let Some(node) = weight_node {
                grads.register::<Flex>(node.id, tensor(for_weight, weight.shape()));
            }
            if let Some(node) = bias_node {
                grads.register::<Flex>(node.id, tensor(for_bias, [outputs]));
            }
        }
        if let Some(node) = x_node {
            let for_x = linear::input_gradient(values(&weight), values(&grad), outputs);
            grads.register::<Flex>(node.id, tensor(for_x, x.shape()));
        }
    }
}

impl<C: CheckpointStrategy> LinearBackend for Autodiff<Flex, C> {
    fn kernel_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), bias.node()];
        let [input, matrix, offsets] = [&x, &weight, &bias].map(|tensor| tensor.clone().into_primitive());
        let output = Flex::kernel_linear(input, matrix, offsets);
        match LinearBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = [prep.checkpoint(&x), prep.checkpoint(&weight)];
                prep.finish(state, output)
            }
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }
}
