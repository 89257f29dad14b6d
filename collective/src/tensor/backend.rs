//! Collectives as an extension of Burn's backends, differentiable through autodiff.

use crate::device_error;
use crate::exchange::Exchange;
use burn::backend::{
    Autodiff, Backend, Flex, TensorMetadata,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind, unary},
    },
    backend_extension,
    tensor::FloatTensor,
};
use burn::tensor::TensorData;
use std::sync::Arc;

/// A Burn backend that can run collectives on its tensors.
#[cfg_attr(feature = "cube", backend_extension(Autodiff, Flex, Cube))]
#[cfg_attr(not(feature = "cube"), backend_extension(Autodiff, Flex))]
pub trait CollectiveBackend: Backend {
    /// Runs the collective. Returns zeros if the group fails, which keeps the error.
    fn exchange(tensor: FloatTensor<Self>, exchange: Exchange) -> FloatTensor<Self>;
}

/// Copies the tensor to the host, runs the collective and copies the result back.
fn through_host<B: Backend>(tensor: FloatTensor<B>, exchange: &Exchange) -> FloatTensor<B> {
    let (device, shape, dtype) = (tensor.device(), tensor.shape(), tensor.dtype());
    let data = match burn::tensor::try_read_sync(B::float_into_data(tensor)) {
        Some(Ok(data)) => Ok(data),
        Some(Err(error)) => Err(format!("its device failed: {}", device_error::cause(&error))),
        None => Err("its device cannot be read synchronously".into()),
    };
    let data = data.unwrap_or_else(|reason| {
        exchange.group.abort(reason);
        TensorData::full_dtype(shape, 0.0, dtype)
    });
    B::float_from_data(exchange.on_host(data), &device)
}

impl CollectiveBackend for Flex {
    fn exchange(tensor: FloatTensor<Self>, exchange: Exchange) -> FloatTensor<Self> {
        through_host::<Self>(tensor, &exchange)
    }
}

#[cfg(feature = "cube")]
impl CollectiveBackend for burn::backend::Cube {
    fn exchange(tensor: FloatTensor<Self>, exchange: Exchange) -> FloatTensor<Self> {
        #[cfg(feature = "cuda")]
        if crate::cuda::is_on(&tensor, &exchange.group) {
            let (device, shape, dtype) = (tensor.device(), tensor.shape(), tensor.dtype());
            return crate::cuda::exchange(tensor, &exchange).unwrap_or_else(|error| {
                exchange.group.abort(error.to_string());
                let shape = exchange.kind.output_shape(shape, exchange.group.rank());
                <Self as burn::backend::ops::FloatTensorOps<Self>>::float_zeros(shape, &device, dtype.into())
            });
        }
        through_host::<Self>(tensor, &exchange)
    }
}

#[derive(Debug)]
struct ExchangeBackward;

impl<B: CollectiveBackend> Backward<B, 1> for ExchangeBackward {
    type State = Exchange;

    fn backward(self, ops: Ops<Exchange, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let exchange = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |grad| B::exchange(grad, exchange));
    }
}

impl<B: CollectiveBackend, C: CheckpointStrategy> CollectiveBackend for Autodiff<B, C> {
    fn exchange(tensor: FloatTensor<Self>, exchange: Exchange) -> FloatTensor<Self> {
        let (primitive, guard) = tensor.into_parts();
        let output = B::exchange(primitive, exchange.clone());
        let Some(kind) = exchange.kind.backward() else {
            return <Self as burn::backend::AutodiffBackend>::from_inner(output);
        };
        let state = Exchange { kind: Arc::new(kind), ..exchange };
        match ExchangeBackward.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(state, output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }
}
