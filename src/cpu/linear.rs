//! Our linear layer as an operation of Burn.

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
use collective::flex::{Host, is_host, rows, tensor, values};
use kernels::linear;

/// `layer.forward(x)`. Ours for layers with a bias.
pub fn linear(layer: &Linear, x: Tensor<2>) -> Tensor<2> {
    let weight = layer.weight.val();
    let bias = match &layer.bias {
        Some(bias) if is_host(&x) && is_host(&weight) => bias.val(),
        _ => return layer.forward(x),
    };
    let [x, weight] = [x, weight].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as LinearBackend>::own_linear(x, weight, bias.into_dispatch()))
}

/// A Burn backend with a linear layer of ours.
#[backend_extension(Autodiff, Flex)]
pub trait LinearBackend: Backend {
    /// `x`, `[batch, inputs]`, times `weight`, `[inputs, outputs]`, and `bias`, `[outputs]`: all f32.
    fn own_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

impl LinearBackend for Flex {
    fn own_linear(x: Host, weight: Host, bias: Host) -> Host {
        let shape = [x.shape()[0], bias.shape()[0]];
        let [x, weight, bias] = [x, weight, bias].map(rows);
        tensor(linear::forward(values(&x), values(&weight), values(&bias)), shape)
    }
}

#[derive(Debug)]
struct Step;

impl Backward<Flex, 3> for Step {
    type State = [NodeId; 2];

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let [x_node, weight_node, bias_node] = ops.parents;
        let [x, weight] = ops.state.map(|node| rows(checkpointer.retrieve_node_output::<Host>(node)));
        let grad = rows(grads.consume::<Flex>(&ops.node));
        let [batch, outputs] = [grad.shape()[0], grad.shape()[1]];
        if weight_node.is_some() || bias_node.is_some() {
            let (for_weight, for_bias) = linear::gradients(values(&x), values(&grad), batch);
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
    fn own_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), bias.node()];
        let [input, matrix, offsets] = [&x, &weight, &bias].map(|tensor| tensor.clone().into_primitive());
        let output = Flex::own_linear(input, matrix, offsets);
        match Step.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = [prep.checkpoint(&x), prep.checkpoint(&weight)];
                prep.finish(state, output)
            }
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }
}
