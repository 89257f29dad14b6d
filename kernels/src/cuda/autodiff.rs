//! Operations that compute their gradients themselves.

use burn::backend::{
    Autodiff, Cube, Dispatch,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind},
    },
    tensor::FloatTensor,
};
use burn::tensor::Tensor;
use std::{fmt::Debug, marker::PhantomData};

/// What the backward pass of an operation of `N` tensors reads.
pub(super) trait Saved<const N: usize>: Clone + Debug + Send + 'static {
    /// Computes the gradients of the inputs that `wanted` marks, from that of the output. Others are ignored.
    fn gradients(self, upstream: FloatTensor<Cube>, wanted: [bool; N]) -> [Option<FloatTensor<Cube>>; N];
}

/// The result of `forward`, which is recorded if the inputs are on a device with autodiff.
///
/// `None` if `forward` returns it, and unless all inputs are on CubeCL's devices, with autodiff or without it.
pub(super) fn run<S: Saved<N>, const N: usize, const D: usize>(
    inputs: [FloatTensor<Dispatch>; N],
    forward: impl FnOnce([FloatTensor<Cube>; N]) -> Option<(FloatTensor<Cube>, S)>,
) -> Option<Tensor<D>> {
    // Conversions do not depend on the rank.
    let tensors = || inputs.iter().map(|input| Tensor::<1>::from_dispatch(input.clone()));
    if let Some(inputs) = array(tensors().map(|tensor| tensor.try_into_primitive::<Cube>().ok())) {
        return Some(Tensor::from_primitive::<Cube>(forward(inputs)?.0));
    }
    let inputs = array(tensors().map(|tensor| tensor.try_into_primitive::<Autodiff<Cube>>().ok()))?;
    let nodes = inputs.each_ref().map(|input| input.node());
    let step = Step::<S>(PhantomData).prepare::<NoCheckpointing>(nodes).compute_bound().stateful();
    let (output, saved) = forward(inputs.map(|input| input.into_primitive()))?;
    Some(Tensor::from_primitive::<Autodiff<Cube>>(match step {
        OpsKind::Tracked(prep) => prep.finish(saved, output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }))
}

/// The items of an iterator of `N`, if there are all.
fn array<T, const N: usize>(items: impl Iterator<Item = Option<T>>) -> Option<[T; N]> {
    items.collect::<Option<Vec<_>>>()?.try_into().ok()
}

#[derive(Debug)]
struct Step<S>(PhantomData<S>);

impl<S: Saved<N>, const N: usize> Backward<Cube, N> for Step<S> {
    type State = S;

    fn backward(self, ops: Ops<S, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let upstream = grads.consume::<Cube>(&ops.node);
        let wanted = ops.parents.each_ref().map(Option::is_some);
        for (node, gradient) in ops.parents.into_iter().zip(ops.state.gradients(upstream, wanted)) {
            if let (Some(node), Some(gradient)) = (node, gradient) {
                grads.register::<Cube>(node.id, gradient);
            }
        }
    }
}
