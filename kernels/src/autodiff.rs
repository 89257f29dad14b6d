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
        ops::{self, Backward as _, Ops, OpsKind},
    },
    tensor::FloatTensor,
};
use burn::tensor::Tensor;
use std::{any::type_name, fmt};

/// The backward pass of an operation of `N` tensors: computes the gradients of the inputs.
///
/// The arguments are the first `R` inputs, the gradient of the output, and whether each input's gradient is wanted.
/// Others are ignored.
pub trait Backward<B: Backend, const N: usize, const R: usize = 0>:
    FnOnce([FloatTensor<B>; R], FloatTensor<B>, [bool; N]) -> Gradients<B, N> + Send + 'static
{
}

impl<B: Backend, F, const N: usize, const R: usize> Backward<B, N, R> for F where
    F: FnOnce([FloatTensor<B>; R], FloatTensor<B>, [bool; N]) -> Gradients<B, N> + Send + 'static
{
}

/// Gradients of `N` inputs.
pub type Gradients<B, const N: usize> = [Option<FloatTensor<B>>; N];

/// The output of `forward`, which is recorded with its backward pass if an input is on a device with autodiff. Inputs
/// without it are constants.
///
/// `None` if `forward` returns it, and unless all inputs are of the backend.
///
/// # Panics
/// If gradient checkpointing is on for some inputs only.
pub fn run<B: Backend, F: Backward<B, N, R>, const N: usize, const R: usize, const D: usize>(
    inputs: [FloatTensor<Dispatch>; N],
    forward: impl FnOnce([FloatTensor<B>; N]) -> Option<(FloatTensor<B>, F)>,
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
    let (output, backward) = forward(inputs.each_ref().map(|input| input.clone().into_primitive()))?;
    // The strategy does not matter for an operation that is compute bound.
    let output = match Step::<F, R>(backward).prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let read = std::array::from_fn(|input| prep.checkpoint(&inputs[input]));
            prep.finish(read, output)
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

struct Step<F, const R: usize>(F);

impl<F, const R: usize> fmt::Debug for Step<F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(type_name::<F>())
    }
}

impl<B: Backend, F: Backward<B, N, R>, const N: usize, const R: usize> ops::Backward<B, N> for Step<F, R> {
    /// The inputs that the backward pass reads.
    type State = [NodeId; R];

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut grads::Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let read = ops.state.map(|node| checkpointer.retrieve_node_output::<FloatTensor<B>>(node));
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let gradients = (self.0)(read, grads.consume::<B>(&ops.node), wanted);
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let (Some(node), Some(gradient)) = (node, gradient) {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}
