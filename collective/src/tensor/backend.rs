//! Collectives on tensors of Burn's backends, and their gradients.

use crate::{
    ReduceOp, device_error,
    exchange::{Exchange, Kind},
};
#[cfg(feature = "cuda")]
use burn::backend::Cube;
use burn::backend::{
    Autodiff, Backend, Dispatch, DispatchKindConversion, DispatchTensor,
    autodiff::checkpoint::strategy::BalancedCheckpointing, tensor::FloatTensor,
};
use burn::tensor::{Tensor, TensorData};
use kernels::autodiff;

/// Runs the collective outside any graph. Returns zeros if the group fails, which keeps the error.
pub(crate) fn exchange<const D: usize>(tensor: Tensor<D>, of: &Exchange) -> Tensor<D> {
    let with = |kind| Exchange { kind, ..of.clone() };
    let differ = |rows: &[usize]| rows.iter().any(|count| *count != rows[0]);
    match &of.kind {
        Kind::AllGather(rows) if differ(rows) => {
            let (longest, mut padding) = (rows.iter().copied().max().unwrap_or(0), tensor.shape());
            padding[0] = longest - padding[0];
            let padding = Tensor::zeros(padding, (&tensor.device(), tensor.dtype()));
            let padded = Tensor::cat(vec![tensor, padding], 0);
            let all = exchange(padded, &with(Kind::AllGather(vec![longest; rows.len()])));
            let part =
                |(rank, rows): (usize, &usize)| all.clone().slice(rank * longest..rank * longest + rows);
            Tensor::cat(rows.iter().enumerate().map(part).collect(), 0)
        }
        Kind::ReduceScatter(rows) if differ(rows) => {
            let (before, own) = (rows[..of.group.rank()].iter().sum::<usize>(), rows[of.group.rank()]);
            exchange(tensor, &with(Kind::AllReduce(ReduceOp::Sum))).slice(before..before + own)
        }
        _ => exchange_rows(tensor, of),
    }
}

/// [`exchange`] with equal rows on all ranks.
fn exchange_rows<const D: usize>(tensor: Tensor<D>, exchange: &Exchange) -> Tensor<D> {
    let (device, shape, dtype) = (tensor.device(), tensor.shape(), tensor.dtype());
    #[cfg(feature = "cuda")]
    if let Ok(primitive) = tensor.clone().try_into_primitive::<Cube>()
        && crate::cuda::is_on(&primitive, &exchange.group)
    {
        drop(tensor);
        return match crate::cuda::exchange(primitive, exchange) {
            Ok(result) => Tensor::from_primitive::<Cube>(result),
            Err(error) => {
                exchange.group.abort(error.to_string());
                Tensor::zeros(exchange.kind.output_shape(shape, exchange.group.rank()), (&device, dtype))
            }
        };
    }
    let data = tensor.try_into_data().unwrap_or_else(|error| {
        exchange.group.abort(format!("its device failed: {}", device_error::cause(&error)));
        TensorData::full_dtype(shape, 0.0, dtype)
    });
    Tensor::from_data(exchange.on_host(data), (&device, dtype))
}

/// Runs the collective as an operation with its gradient. `None` unless the tensor is of the backend.
pub(super) fn recorded<B: Backend, const D: usize>(
    tensor: FloatTensor<Dispatch>,
    of: Exchange,
) -> Option<Tensor<D>>
where
    DispatchTensor: DispatchKindConversion<B>
        + DispatchKindConversion<Autodiff<B>>
        + DispatchKindConversion<Autodiff<B, BalancedCheckpointing>>,
{
    autodiff::run::<B, _, 1, 0, D>([tensor], |[tensor]| {
        let result = exchange(Tensor::<D>::from_primitive::<B>(tensor), &of);
        let backward = move |[]: [_; 0], gradient, _: [bool; 1]| {
            [of.kind.backward().and_then(|kind| {
                let of = Exchange { kind, ..of };
                exchange(Tensor::<D>::from_primitive::<B>(gradient), &of).try_into_primitive::<B>().ok()
            })]
        };
        Some((result.try_into_primitive::<B>().ok()?, backward))
    })
}
