//! Operations on f32 tensors in host memory, with their gradients.
//!
//! [`HostOperations`] is the only backend extension: it runs any [`Operation`] on Flex, and records it for autodiff as
//! compute bound, so that gradient checkpointing never repeats it.

use crate::host_tensor::{Host, contiguous, tensor};
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
use burn::tensor::Tensor;
use std::{fmt::Debug, marker::PhantomData};

/// An operation of `N` tensors, of which backward reads the first `R`. All tensors are row-major and f32.
pub trait Operation<const N: usize, const R: usize>: Clone + Debug + Send + Sync + 'static {
    /// What backward needs besides the inputs.
    type Saved: Clone + Debug + Send + 'static;

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

/// Gradients in the shapes of the inputs, where wanted.
pub fn shaped<const N: usize>(
    gradients: [Vec<f32>; N],
    inputs: &[Host; N],
    wanted: [bool; N],
) -> [Option<Host>; N] {
    let mut at = 0;
    gradients.map(|gradient| {
        at += 1;
        wanted[at - 1].then(|| tensor(gradient, inputs[at - 1].shape()))
    })
}

/// Computes an operation of up to six tensors of any ranks.
pub fn run<const D: usize, const N: usize, const R: usize>(
    operation: impl Operation<N, R>,
    inputs: [FloatTensor<Dispatch>; N],
) -> Tensor<D> {
    const { assert!(0 < N && N <= MOST && R <= N) };
    // A backend extension takes a fixed number of tensors, of which `on_host` ignores all but the first `N`.
    let [a, b, c, d, e, f] = std::array::from_fn(|at| inputs[if at < N { at } else { 0 }].clone());
    Tensor::from_dispatch(<Dispatch as HostOperations>::on_host(a, b, c, d, e, f, operation))
}

/// Number of tensors that [`HostOperations`] takes.
const MOST: usize = 6;

/// A Burn backend that runs operations in host memory.
#[backend_extension(Autodiff, Flex)]
pub trait HostOperations: Backend {
    /// Computes an operation of the first `N` tensors.
    #[allow(clippy::too_many_arguments, reason = "a backend extension takes no slices")]
    fn on_host<const N: usize, const R: usize, O: Operation<N, R>>(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        f: FloatTensor<Self>,
        operation: O,
    ) -> FloatTensor<Self>;
}

impl HostOperations for Flex {
    fn on_host<const N: usize, const R: usize, O: Operation<N, R>>(
        a: Host,
        b: Host,
        c: Host,
        d: Host,
        e: Host,
        f: Host,
        operation: O,
    ) -> Host {
        operation.forward(first([a, b, c, d, e, f]).map(contiguous)).0
    }
}

impl<C: CheckpointStrategy> HostOperations for Autodiff<Flex, C> {
    fn on_host<const N: usize, const R: usize, O: Operation<N, R>>(
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        c: FloatTensor<Self>,
        d: FloatTensor<Self>,
        e: FloatTensor<Self>,
        f: FloatTensor<Self>,
        operation: O,
    ) -> FloatTensor<Self> {
        recorded::<C, N, R, O>(first([a, b, c, d, e, f]), operation)
    }
}

/// The first `N` tensors.
fn first<T, const N: usize>(all: [T; MOST]) -> [T; N] {
    let mut all = all.into_iter();
    std::array::from_fn(|_| all.next().expect("at most as many as there are"))
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
            let read = std::array::from_fn(|input| prep.checkpoint(&inputs[input]));
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
