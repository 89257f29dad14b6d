//! ReLU whose gradient is fused with the operations before it.

use super::tensors::recorded;
use burn::backend::{
    Autodiff, Cube,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
        grads::Gradients,
        ops::{Backward, Ops},
    },
    tensor::FloatTensor,
};
use burn::tensor::Tensor;

/// Computes `burn::tensor::activation::relu(x)`; `None` without autodiff or on another kind of device.
///
/// Burn's gradient begins with a comparison of the output with zero. Fusion starts another block of operations there,
/// because the comparison does not depend on the gradient, so that Burn's gradient takes two launches.
pub(crate) fn relu<const D: usize>(x: &Tensor<D>) -> Option<Tensor<D>> {
    let x = x.clone().try_into_primitive::<Autodiff<Cube>>().ok()?;
    let step = Step::<D>.prepare::<NoCheckpointing>([x.node()]).compute_bound().stateful();
    let output = burn::tensor::activation::relu(Tensor::<D>::from_primitive::<Cube>(x.into_primitive()));
    let output = output.try_into_primitive::<Cube>().ok()?;
    Some(recorded(step, output.clone(), output))
}

#[derive(Debug)]
struct Step<const D: usize>;

impl<const D: usize> Backward<Cube, 1> for Step<D> {
    /// The output.
    type State = FloatTensor<Cube>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let upstream = Tensor::<D>::from_primitive::<Cube>(grads.consume::<Cube>(&ops.node));
        let [Some(node)] = ops.parents else { return };
        let output = Tensor::<D>::from_primitive::<Cube>(ops.state);
        // Zeros that depend on the gradient.
        let zeros = upstream.clone().clamp(0.0, 0.0);
        let gradient = upstream.mask_fill(output.lower_equal(zeros), 0.0);
        if let Ok(gradient) = gradient.try_into_primitive::<Cube>() {
            grads.register::<Cube>(node.id, gradient);
        }
    }
}
