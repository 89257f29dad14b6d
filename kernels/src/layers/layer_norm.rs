//! Layer normalisation as a Burn operation.

use crate::host_tensor::{Host, contiguous, is_host, tensor, values};
use crate::layer_norm::LayerNorm as Kernel;
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
    if !is_host(&x) || !is_host(&gamma) || !is_host(&beta) {
        return burn::tensor::module::layer_norm(x, gamma, Some(beta), epsilon);
    }
    let (gamma, beta) = (gamma.into_dispatch(), beta.into_dispatch());
    Tensor::from_dispatch(<Dispatch as LayerNormBackend>::kernel_layer_norm(
        x.into_dispatch(),
        gamma,
        beta,
        epsilon,
    ))
}

/// A Burn backend with the layer normalisation of this crate.
#[backend_extension(Autodiff, Flex)]
pub trait LayerNormBackend: Backend {
    /// Normalises the last dimension of `x`, of the length of `gamma` and `beta`; all are f32.
    fn kernel_layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self>;
}

impl LayerNormBackend for Flex {
    fn kernel_layer_norm(x: Host, gamma: Host, beta: Host, epsilon: f64) -> Host {
        let [x, gamma, beta] = [x, gamma, beta].map(contiguous);
        let with = Kernel { gamma: values(&gamma), beta: values(&beta), epsilon: epsilon as f32 };
        tensor(with.forward(values(&x)), x.shape())
    }
}

#[derive(Debug)]
struct LayerNormBackward;

impl Backward<Flex, 3> for LayerNormBackward {
    type State = ([NodeId; 3], f64);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (nodes, epsilon) = ops.state;
        let [x, gamma, beta] = nodes.map(|node| contiguous(checkpointer.retrieve_node_output::<Host>(node)));
        let grad = contiguous(grads.consume::<Flex>(&ops.node));
        let with = Kernel { gamma: values(&gamma), beta: values(&beta), epsilon: epsilon as f32 };
        let gradients = with.backward(values(&x), values(&grad));
        let shapes = [&x, &gamma, &beta].map(|tensor| tensor.shape());
        for ((node, gradient), shape) in ops.parents.into_iter().zip(gradients).zip(shapes) {
            if let Some(node) = node {
                grads.register::<Flex>(node.id, tensor(gradient, shape));
            }
        }
    }
}

impl<C: CheckpointStrategy> LayerNormBackend for Autodiff<Flex, C> {
    fn kernel_layer_norm(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), gamma.node(), beta.node()];
        let [input, factors, offsets] = [&x, &gamma, &beta].map(|tensor| tensor.clone().into_primitive());
        let output = Flex::kernel_layer_norm(input, factors, offsets, epsilon);
        match LayerNormBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = [prep.checkpoint(&x), prep.checkpoint(&gamma), prep.checkpoint(&beta)];
                prep.finish((state, epsilon), output)
            }
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }
}
