//! Layer normalisation.

use super::operation::{self, Operation};
use crate::host_tensor::{Host, is_host, tensor, values};
use crate::layer_norm::LayerNorm;
use burn::backend::TensorMetadata;
use burn::tensor::{DType, Tensor, assert_shape};

/// Normalises `x` over its last dimension, as `burn::tensor::module::layer_norm`.
///
/// 16-bit tensors are normalised in f32; the result has the type of `x`.
///
/// # Panics
/// If `gamma` or `beta` is not as long as the last dimension of `x`.
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let width = x.dims()[D - 1];
    assert_shape!(gamma, [width]);
    assert_shape!(beta, [width]);
    if let dtype @ (DType::F16 | DType::BF16) = x.dtype() {
        let (gamma, beta) = (gamma.cast(DType::F32), beta.cast(DType::F32));
        return layer_norm(x.cast(DType::F32), gamma, beta, epsilon).cast(dtype);
    }
    #[cfg(feature = "cuda")]
    if let Some(output) = crate::cuda::layer_norm(&x, &gamma, &beta, epsilon as f32) {
        return output;
    }
    if !is_host(&x) || !is_host(&gamma) || !is_host(&beta) {
        return burn::tensor::module::layer_norm(x, gamma, Some(beta), epsilon);
    }
    operation::run(
        Operator { epsilon: epsilon as f32 },
        [x.into_dispatch(), gamma.into_dispatch(), beta.into_dispatch()],
    )
}

#[derive(Clone, Debug)]
struct Operator {
    epsilon: f32,
}

impl Operator {
    fn kernel<'a>(&self, gamma: &'a Host, beta: &'a Host) -> LayerNorm<'a> {
        LayerNorm { gamma: values(gamma), beta: values(beta), epsilon: self.epsilon }
    }
}

impl Operation<3, 3> for Operator {
    type Saved = ();

    const READS: [usize; 3] = [0, 1, 2];

    fn forward(&self, [x, gamma, beta]: [Host; 3]) -> (Host, ()) {
        (tensor(self.kernel(&gamma, &beta).forward(values(&x)), x.shape()), ())
    }

    fn backward(&self, read: [Host; 3], (): (), grad: Host, _: [bool; 3]) -> [Option<Host>; 3] {
        let [x, gamma, beta] = &read;
        let [for_x, for_gamma, for_beta] = self.kernel(gamma, beta).backward(values(x), values(&grad));
        [(for_x, x), (for_gamma, gamma), (for_beta, beta)]
            .map(|(gradient, of)| Some(tensor(gradient, of.shape())))
    }
}
