//! Convolution and its gradients as an operation of Burn's Flex backend.

use super::{Epilogue, Settings, Shape};
use crate::conv::{self, Filters, Gradient, Pooled, Whole};
use crate::host_tensor::{Host, contiguous, tensor, values};
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
use std::{borrow::Cow, sync::Arc};

/// A Burn backend with the convolution of this crate.
#[backend_extension(Autodiff, Flex)]
pub trait ConvBackend: Backend {
    /// Convolution of `x`, `[batch, channels, height, width]`, as `settings` describe.
    ///
    /// `weight` is `[filters, channels, height, width]` and `bias` is `[filters]`; all are f32.
    fn kernel_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: Settings,
    ) -> FloatTensor<Self>;
}

impl ConvBackend for Flex {
    fn kernel_conv2d(x: Host, weight: Host, bias: Host, settings: Settings) -> Host {
        forward([x, weight, bias], settings).0
    }
}

/// The part of the output that backward needs.
#[derive(Clone, Debug)]
enum Passed {
    /// Nothing: every output passes its gradient on.
    All,
    /// The output of a ReLU.
    Positive(Host),
    /// Index of each pooled value within its window.
    Taken(Arc<Vec<u8>>),
}

/// Images and weights of the convolution with stride 1.
fn folded<'a>(shape: &Shape, x: &'a Host, weight: &'a Host) -> [Cow<'a, [f32]>; 2] {
    let (x, weight) = (values(x), values(weight));
    match shape {
        Shape::Plain(_) => [Cow::Borrowed(x), Cow::Borrowed(weight)],
        Shape::Strided(strided) => [Cow::Owned(strided.fold(x)), Cow::Owned(strided.fold_weights(weight))],
    }
}

fn forward(parts: [Host; 3], Settings { shape, epilogue }: Settings) -> (Host, Passed) {
    let [x, weight, bias] = parts.map(contiguous);
    let (geometry, [x, weight]) = (shape.geometry(), folded(&shape, &x, &weight));
    let taps = geometry.taps();
    let weight = |filter, tap| weight[filter * taps + tap];
    let filters = |relu| Filters { weight: &weight, bias: Some(values(&bias)), relu };
    let plain = |relu| tensor(conv::forward(geometry, &x, filters(relu)), geometry.outputs());
    match epilogue {
        Epilogue::Nothing => (plain(false), Passed::All),
        Epilogue::Relu => {
            let output = plain(true);
            (output.clone(), Passed::Positive(output))
        }
        Epilogue::Pooled => {
            let (output, taken) = conv::forward_pooled(geometry, &x, filters(false));
            let ([batch, filters, ..], [height, width]) = (geometry.outputs(), geometry.pooled());
            (tensor(output, [batch, filters, height, width]), Passed::Taken(Arc::new(taken)))
        }
    }
}

#[derive(Debug)]
struct ConvBackward;

#[derive(Clone, Debug)]
struct ConvState {
    x: NodeId,
    weight: NodeId,
    passed: Passed,
    settings: Settings,
}

impl Backward<Flex, 3> for ConvBackward {
    type State = ConvState;

    fn backward(self, ops: Ops<ConvState, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let [x_node, weight_node, bias_node] = ops.parents;
        let ConvState { x, weight, passed, settings: Settings { shape, .. } } = ops.state;
        let grad = contiguous(grads.consume::<Flex>(&ops.node));
        let [x, weight] = [x, weight].map(|node| contiguous(checkpointer.retrieve_node_output::<Host>(node)));
        let (geometry, [x, weight]) = (shape.geometry(), folded(&shape, &x, &weight));
        let grad = values(&grad);
        let gradient = match &passed {
            Passed::All => Gradient::Whole(Whole { values: grad, output: None }),
            Passed::Positive(output) => Gradient::Whole(Whole { values: grad, output: Some(values(output)) }),
            Passed::Taken(taken) => Gradient::Pooled(Pooled { values: grad, taken }),
        };

        if weight_node.is_some() || bias_node.is_some() {
            let (for_weight, for_bias) = conv::gradients(geometry, &x, gradient);
            if let Some(node) = weight_node {
                let for_weight = match shape {
                    Shape::Plain(_) => tensor(for_weight, geometry.weights()),
                    Shape::Strided(strided) => tensor(strided.unfold_weights(&for_weight), strided.weights()),
                };
                grads.register::<Flex>(node.id, for_weight);
            }
            if let Some(node) = bias_node {
                grads.register::<Flex>(node.id, tensor(for_bias, [geometry.weights()[0]]));
            }
        }
        if let Some(node) = x_node {
            let result = conv::input_gradient(geometry, &weight, gradient);
            let result = match shape {
                Shape::Plain(_) => tensor(result, geometry.inputs()),
                Shape::Strided(strided) => tensor(strided.unfold(&result), strided.inputs()),
            };
            grads.register::<Flex>(node.id, result);
        }
    }
}

impl<C: CheckpointStrategy> ConvBackend for Autodiff<Flex, C> {
    fn kernel_conv2d(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        settings: Settings,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node(), bias.node()];
        let primitives = [&x, &weight, &bias].map(|tensor| tensor.clone().into_primitive());
        let (output, passed) = forward(primitives, settings);
        match ConvBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let (x, weight) = (prep.checkpoint(&x), prep.checkpoint(&weight));
                prep.finish(ConvState { x, weight, passed, settings }, output)
            }
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }
}
