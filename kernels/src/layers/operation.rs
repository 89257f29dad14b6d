//! Operations on f32 tensors in host memory, with their gradients.
//!
//! [`HostOperations`] is the only backend extension: it runs any [`Operation`] on Flex, and records it for autodiff as
//! compute bound, so that gradient checkpointing never repeats it.

use crate::host_tensor::{Host, contiguous};
use burn::backend::{
    Autodiff, Backend, Dispatch, Flex,
    autodiff::{
        NodeId,
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    backend_extension,
    tensor::FloatTensor,
};
use burn::tensor::Tensor;
use std::{fmt::Debug, marker::PhantomData};

/// An operation of `N` tensors, of which backward reads `R`. All tensors are row-major and f32.
pub trait Operation<const N: usize, const R: usize>: Clone + Debug + Send + Sync + 'static {
    /// What backward needs besides the inputs.
    type Saved: Clone + Debug + Send + 'static;

    /// Numbers of the inputs that backward reads.
    const READS: [usize; R];

    /// Computes the output.
    fn forward(&self, inputs: [Host; N]) -> (Host, Self::Saved);

    /// Computes the gradients of the inputs that `wanted` marks; others may be `None`.
    fn backward(
        &self,
        read: [Host; R],
        saved: Self::Saved,
        gradient: Host,
        wanted: [bool; N],
    ) -> [Option<Host>; N];
}

/// Computes an operation of one tensor.
pub fn unary<const A: usize, const D: usize, const R: usize>(
    operation: impl Operation<1, R>,
    x: Tensor<A>,
) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as HostOperations>::unary_on_host(x.into_dispatch(), operation))
}

/// Computes an operation of three tensors.
pub fn ternary<const A: usize, const B: usize, const C: usize, const D: usize, const R: usize>(
    operation: impl Operation<3, R>,
    x: Tensor<A>,
    y: Tensor<B>,
    z: Tensor<C>,
) -> Tensor<D> {
    let (x, y, z) = (x.into_dispatch(), y.into_dispatch(), z.into_dispatch());
    Tensor::from_dispatch(<Dispatch as HostOperations>::ternary_on_host(x, y, z, operation))
}

/// A Burn backend that runs operations in host memory.
#[backend_extension(Autodiff, Flex)]
pub trait HostOperations: Backend {
    /// Computes an operation of one tensor.
    fn unary_on_host<const R: usize, O: Operation<1, R>>(
        x: FloatTensor<Self>,
        operation: O,
    ) -> FloatTensor<Self>;

    /// Computes an operation of three tensors.
    fn ternary_on_host<const R: usize, O: Operation<3, R>>(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        z: FloatTensor<Self>,
        operation: O,
    ) -> FloatTensor<Self>;
}

impl HostOperations for Flex {
    fn unary_on_host<const R: usize, O: Operation<1, R>>(x: Host, operation: O) -> Host {
        operation.forward([contiguous(x)]).0
    }

    fn ternary_on_host<const R: usize, O: Operation<3, R>>(x: Host, y: Host, z: Host, operation: O) -> Host {
        operation.forward([x, y, z].map(contiguous)).0
    }
}

impl<C: CheckpointStrategy> HostOperations for Autodiff<Flex, C> {
    fn unary_on_host<const R: usize, O: Operation<1, R>>(
        x: FloatTensor<Self>,
        operation: O,
    ) -> FloatTensor<Self> {
        recorded::<C, 1, R, O>([x], operation)
    }

    fn ternary_on_host<const R: usize, O: Operation<3, R>>(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        z: FloatTensor<Self>,
        operation: O,
    ) -> FloatTensor<Self> {
        recorded::<C, 3, R, O>([x, y, z], operation)
    }
}

/// A tensor with its place in the graph.
type Recorded = FloatTensor<Autodiff<Flex>>;

fn recorded<C: CheckpointStrategy, const N: usize, const R: usize, O: Operation<N, R>>(
    inputs: [Recorded; N],
    operation: O,
) -> Recorded {
    let values = inputs.each_ref().map(|input| contiguous(input.clone().into_primitive()));
    let (output, saved) = operation.forward(values);
    let nodes = inputs.each_ref().map(|input| input.node());
    match Step::<O, R>(PhantomData).prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let read = O::READS.map(|input| prep.checkpoint(&inputs[input]));
            prep.finish(State { operation, read, saved }, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}

#[derive(Debug)]
struct Step<O, const R: usize>(PhantomData<O>);

#[derive(Clone, Debug)]
struct State<O, S, const R: usize> {
    operation: O,
    read: [NodeId; R],
    saved: S,
}

impl<const N: usize, const R: usize, O: Operation<N, R>> Backward<Flex, N> for Step<O, R> {
    type State = State<O, O::Saved, R>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let State { operation, read, saved } = ops.state;
        let read = read.map(|node| contiguous(checkpointer.retrieve_node_output::<Host>(node)));
        let gradient = contiguous(grads.consume::<Flex>(&ops.node));
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let gradients = operation.backward(read, saved, gradient, wanted);
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let (Some(node), Some(gradient)) = (node, gradient) {
                grads.register::<Flex>(node.id, gradient);
            }
        }
    }
}
