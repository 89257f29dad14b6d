//! The convolution as an operation of Burn's Flex backend, and its gradients.

use super::Settings;
use burn::backend::{
    Autodiff, Backend, Flex,
    autodiff::{
        NodeId,
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    backend_extension,
    tensor::FloatTensor,
};
use collective::flex::{Host, rows, tensor, values};
use kernels::conv::{self, Filters, Gradient};

/// A Burn backend with a convolution of ours.
#[backend_extension(Autodiff, Flex)]
pub trait ConvBackend: Backend {
    /// `x`, `[batch, channels, height, width]`, with `weight`, `[filters, channels, height, width]`,
    /// and `bias`, `[filters]`: all f32 and as `settings` say.
    fn own_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: Settings,
    ) -> FloatTensor<Self>;
}

impl ConvBackend for Flex {
    fn own_conv2d(x: Host, weight: Host, bias: Host, Settings { geometry, relu }: Settings) -> Host {
        let [x, weight, bias] = [x, weight, bias].map(rows);
        let (taps, weight) = (geometry.taps(), values(&weight));
        let filters =
            Filters { weight: &|filter, tap| weight[filter * taps + tap], bias: Some(values(&bias)), relu };
        let output = conv::forward(geometry, Gradient { values: values(&x), output: None }, filters);
        let [height, width] = geometry.output();
        tensor(output, [geometry.batch, geometry.filters, height, width])
    }
}

#[derive(Debug)]
struct Step;

#[derive(Clone, Debug)]
struct State {
    x: NodeId,
    weight: NodeId,
    /// If it tells what the ReLU cut off.
    output: Option<Host>,
    settings: Settings,
}

impl Backward<Flex, 3> for Step {
    type State = State;

    fn backward(self, ops: Ops<State, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let [x_node, weight_node, bias_node] = ops.parents;
        let State { x, weight, output, settings: Settings { geometry, .. } } = ops.state;
        let grad = rows(grads.consume::<Flex>(&ops.node));
        let [x, weight] = [x, weight].map(|node| rows(checkpointer.retrieve_node_output::<Host>(node)));
        let gradient = Gradient { values: values(&grad), output: output.as_ref().map(values) };

        if weight_node.is_some() || bias_node.is_some() {
            let (for_weight, for_bias) = conv::gradients(geometry, values(&x), gradient);
            if let Some(node) = weight_node {
                let [height, width] = geometry.kernel;
                let shape = [geometry.filters, geometry.channels, height, width];
                grads.register::<Flex>(node.id, tensor(for_weight, shape));
            }
            if let Some(node) = bias_node {
                grads.register::<Flex>(node.id, tensor(for_bias, [geometry.filters]));
            }
        }
        if let Some(node) = x_node {
            let result = conv::input_gradient(geometry, values(&weight), gradient);
            let [height, width] = geometry.size;
            grads.register::<Flex>(
                node.id,
                tensor(result, [geometry.batch, geometry.channels, height, width]),
            );
        }
    }
}

impl<C: CheckpointStrategy> ConvBackend for Autodiff<Flex, C> {
    fn own_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: Settings,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), bias.node()];
        let primitives = [&x, &weight, &bias].map(|tensor| tensor.clone().into_primitive());
        let [input, filters, offsets] = primitives;
        let output = Flex::own_conv2d(input, filters, offsets, settings);
        match Step.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let (x, weight) = (prep.checkpoint(&x), prep.checkpoint(&weight));
                let kept = settings.relu.then(|| output.clone());
                prep.finish(State { x, weight, output: kept, settings }, output)
            }
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }
}
