//! Collectives on tensors of Burn's backends, and their gradients.

use crate::device_error;
use crate::exchange::Exchange;
use burn::backend::{
    Autodiff, Backend, Dispatch, DispatchKindConversion, DispatchTensor, Flex, TensorMetadata,
    autodiff::checkpoint::strategy::BalancedCheckpointing, tensor::FloatTensor,
};
use burn::tensor::{Tensor, TensorData};
use kernels::autodiff::{self, Gradients, Saved, Upstream};
use std::sync::Arc;

/// A Burn backend that can run collectives on its tensors.
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

/// Runs the collective as an operation with its gradient. `None` unless the tensor is of the backend.
pub(super) fn recorded<B: CollectiveBackend, const D: usize>(
    tensor: FloatTensor<Dispatch>,
    exchange: Exchange,
) -> Option<Tensor<D>>
where
    DispatchTensor: DispatchKindConversion<B>
        + DispatchKindConversion<Autodiff<B>>
        + DispatchKindConversion<Autodiff<B, BalancedCheckpointing>>,
{
    autodiff::run([tensor], |[tensor]| Some((B::exchange(tensor, exchange.clone()), Recorded(exchange))))
}

#[derive(Clone, Debug)]
struct Recorded(Exchange);

impl<B: CollectiveBackend> Saved<B, 1> for Recorded {
    fn gradients(self, Upstream { gradient, .. }: Upstream<B, 1>) -> Gradients<B, 1> {
        let Self(exchange) = self;
        let kind = exchange.kind.backward();
        [kind.map(|kind| B::exchange(gradient, Exchange { kind: Arc::new(kind), ..exchange }))]
    }
}
