//! Operations that compute their gradients themselves, on any backend.
//!
//! They are recorded as compute bound, so that gradient checkpointing never repeats them.

use burn::backend::{
    Autodiff, AutodiffBackend, Backend, Dispatch, DispatchAutodiffContext as Context, DispatchKindConversion,
    DispatchTensor, GradientCheckpointingStrategy as Strategy,
    autodiff::{
        NodeId,
        checkpoint::{
            base::Checkpointer,
            strategy::{BalancedCheckpointing, NoCheckpointing},
        },
        grads,
        ops::{Backward, Ops, OpsKind},
    },
    tensor::FloatTensor,
};
use burn::tensor::Tensor;
use std::{fmt::Debug, marker::PhantomData};

/// What the backward pass of an operation of `N` tensors needs besides the first `R` of them.
pub trait Saved<B: Backend, const N: usize, const R: usize = 0>: Clone + Debug + Send + 'static {
    /// Computes the gradients of the inputs that `upstream` wants. Others are ignored.
    fn gradients(self, upstream: Upstream<B, N, R>) -> Gradients<B, N>;
}

/// The gradient of an output, and what backward needs with it.
pub struct Upstream<B: Backend, const N: usize, const R: usize = 0> {
    /// The gradient of the output.
    pub gradient: FloatTensor<B>,
    /// Inputs whose gradients are computed.
    pub wanted: [bool; N],
    /// The first inputs.
    pub read: [FloatTensor<B>; R],
}

/// Gradients of `N` inputs.
pub type Gradients<B, const N: usize> = [Option<FloatTensor<B>>; N];

/// The result of `forward`, which is recorded if an input is on a device with autodiff. Inputs without it are constants.
///
/// `None` if `forward` returns it, and unless all inputs are of the backend.
///
/// # Panics
/// If gradient checkpointing is on for some inputs only.
pub fn run<B: Backend, S: Saved<B, N, R>, const N: usize, const R: usize, const D: usize>(
    inputs: [FloatTensor<Dispatch>; N],
    forward: impl FnOnce([FloatTensor<B>; N]) -> Option<(FloatTensor<B>, S)>,
) -> Option<Tensor<D>>
where
    DispatchTensor: DispatchKindConversion<B>
        + DispatchKindConversion<Autodiff<B>>
        + DispatchKindConversion<Autodiff<B, BalancedCheckpointing>>,
{
    const { assert!(R <= N) };
    let context = inputs.iter().fold(Context::Disabled, |context, input| context.merge(input.autodiff));
    let Context::Enabled(strategy) = context else {
        let inputs = array(inputs.map(|input| untyped(input).try_into_primitive::<B>().ok()))?;
        return Some(Tensor::from_primitive::<B>(forward(inputs)?.0));
    };
    let recorded = inputs.map(|input| match input.autodiff {
        Context::Disabled => untyped(input).try_into_primitive::<B>().ok().map(Autodiff::<B>::from_inner),
        Context::Enabled(Strategy::Disabled) => untyped(input).try_into_primitive::<Autodiff<B>>().ok(),
        Context::Enabled(Strategy::Balanced) => {
            untyped(input).try_into_primitive::<Autodiff<B, BalancedCheckpointing>>().ok()
        }
    });
    let inputs = array(recorded)?;
    let nodes = inputs.each_ref().map(|input| input.node());
    // The strategy does not matter for an operation that is compute bound.
    let step = Step::<S, R>(PhantomData).prepare::<NoCheckpointing>(nodes).compute_bound().stateful();
    let (output, saved) = forward(inputs.each_ref().map(|input| input.clone().into_primitive()))?;
    let output = match step {
        OpsKind::Tracked(mut prep) => {
            let read = std::array::from_fn(|input| prep.checkpoint(&inputs[input]));
            prep.finish((read, saved), output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    };
    Some(match strategy {
        Strategy::Disabled => Tensor::from_primitive::<Autodiff<B>>(output),
        Strategy::Balanced => Tensor::from_primitive::<Autodiff<B, BalancedCheckpointing>>(output),
    })
}

/// The tensor for conversions, which do not depend on the rank.
fn untyped(tensor: FloatTensor<Dispatch>) -> Tensor<1> {
    Tensor::from_dispatch(tensor)
}

/// All items; `None` if one is missing.
fn array<T, const N: usize>(items: [Option<T>; N]) -> Option<[T; N]> {
    items.into_iter().collect::<Option<Vec<_>>>()?.try_into().ok()
}

#[derive(Debug)]
struct Step<S, const R: usize>(PhantomData<S>);

impl<B: Backend, S: Saved<B, N, R>, const N: usize, const R: usize> Backward<B, N> for Step<S, R> {
    type State = ([NodeId; R], S);

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut grads::Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let (read, saved) = ops.state;
        let upstream = Upstream {
            read: read.map(|node| checkpointer.retrieve_node_output::<FloatTensor<B>>(node)),
            gradient: grads.consume::<B>(&ops.node),
            wanted: ops.parents.each_ref().map(Option::is_some),
        };
        for (node, gradient) in ops.parents.into_iter().zip(saved.gradients(upstream)) {
            if let (Some(node), Some(gradient)) = (node, gradient) {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}
