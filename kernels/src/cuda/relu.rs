//! ReLU whose gradient is fused with the operations before it.

use super::tensors::run;
use burn::backend::{Cube, tensor::FloatTensor};
use burn::tensor::{Tensor, activation};

/// Computes `burn::tensor::activation::relu(x)`; `None` without autodiff or on another kind of device.
///
/// Burn's gradient begins with a comparison of the output with zero. Fusion starts another block of operations there,
/// because the comparison does not depend on the gradient, so that Burn's gradient takes two launches.
pub(crate) fn relu<const D: usize>(x: &Tensor<D>) -> Option<Tensor<D>> {
    if !x.device().is_autodiff() {
        return None;
    }
    run([x.clone().into_dispatch()], |[x]| {
        let output =
            activation::relu(Tensor::<D>::from_primitive::<Cube>(x)).try_into_primitive::<Cube>().ok()?;
        let known = output.clone();
        let backward = |[]: [FloatTensor<Cube>; 0], upstream, _: [bool; 1]| {
            let [upstream, output] = [upstream, known].map(Tensor::<D>::from_primitive::<Cube>);
            // Zeros that depend on the gradient.
            let zeros = upstream.clone().clamp(0.0, 0.0);
            let gradient = upstream.mask_fill(output.lower_equal(zeros), 0.0);
            [gradient.try_into_primitive::<Cube>().ok()]
        };
        Some((output, backward))
    })
}
