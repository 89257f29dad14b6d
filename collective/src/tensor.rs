//! Collectives on `Tensor<D>`: any float type, any Burn device, differentiable where that has a
//! meaning.
//!
//! A tensor on a GPU with a device data plane ([`ProcessGroup::attach`]) stays there; any other goes
//! through host memory. What a collective does backwards is again a collective,
//! so every rank must run backward over it; gradient checkpointing never repeats one, because the
//! operations count as compute-bound.

use crate::{Error, ProcessGroup, ReduceOp, Result};
use burn::backend::{
    Autodiff, Backend, Dispatch, Flex, TensorMetadata,
    autodiff::{
        checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
        grads::Gradients,
        ops::{Backward, Ops, OpsKind, unary},
    },
    backend_extension,
    tensor::FloatTensor,
};
use burn::tensor::{DType, Shape, Tensor, TensorData, bf16, f16};
use std::sync::Arc;

/// In place of each rank's tensor: the reduction over all ranks, the same bits everywhere.
///
/// Backwards, `Sum` and `Mean` reduce the gradients in the same way. `Min`, `Max` and `Product` are
/// constants to autodiff.
///
/// # Errors
/// If the group fails, or the ranks' shapes differ in their number of elements.
pub fn all_reduce<const D: usize>(
    tensor: Tensor<D>,
    group: &ProcessGroup,
    op: ReduceOp,
) -> Result<Tensor<D>> {
    run(tensor, group, Kind::AllReduce(op))
}

/// All ranks' tensors, one after the other along the first dimension, which may differ in length
/// between ranks. Backwards, each rank receives the sum of all ranks' gradients of its own rows.
///
/// # Errors
/// If the group fails, or the shapes differ in another dimension.
pub fn all_gather<const D: usize>(tensor: Tensor<D>, group: &ProcessGroup) -> Result<Tensor<D>> {
    let shape = tensor.shape();
    let all = group.all_gather_object(&shape.to_vec())?;
    if let Some(rank) = all.iter().position(|theirs| theirs[1..] != all[0][1..]) {
        let (ours, theirs) = (&all[0], &all[rank]);
        return Err(Error::Invalid(format!(
            "all_gather: rank 0 has shape {ours:?}, but rank {rank} {theirs:?}"
        )));
    }
    run(tensor, group, Kind::AllGather(all.iter().map(|shape| shape[0]).collect()))
}

/// The reduction over all ranks, of which each rank keeps its near-equal part of the first
/// dimension: `len / n` rows, and one more for the first `len % n` ranks. Backwards, gradients are
/// gathered; `Sum` and `Mean` only.
///
/// # Errors
/// If the group fails, or `op` is neither `Sum` nor `Mean`.
pub fn reduce_scatter<const D: usize>(
    tensor: Tensor<D>,
    group: &ProcessGroup,
    op: ReduceOp,
) -> Result<Tensor<D>> {
    let tensor = match op {
        ReduceOp::Sum => tensor,
        ReduceOp::Mean => tensor.div_scalar(group.world_size() as f32),
        ReduceOp::Min | ReduceOp::Max | ReduceOp::Product => {
            return Err(Error::Invalid(format!("reduce_scatter of tensors knows Sum and Mean, not {op:?}")));
        }
    };
    let (len, n) = (tensor.dims()[0], group.world_size());
    run(
        tensor,
        group,
        Kind::ReduceScatter((0..n).map(|rank| len / n + usize::from(rank < len % n)).collect()),
    )
}

/// The tensor of rank `root` on every rank. Backwards, `root` receives the sum of all gradients,
/// the other ranks' tensors none.
///
/// # Errors
/// If the group fails, or there is no such rank.
pub fn broadcast<const D: usize>(tensor: Tensor<D>, group: &ProcessGroup, root: usize) -> Result<Tensor<D>> {
    run(tensor, group, Kind::Broadcast(root))
}

/// An operation cannot return an error from inside Burn's graph. It returns zeros then, and the
/// group remembers why.
fn run<const D: usize>(tensor: Tensor<D>, group: &ProcessGroup, kind: Kind) -> Result<Tensor<D>> {
    let exchange = Exchange { group: group.clone(), kind: Arc::new(kind) };
    let result =
        Tensor::from_dispatch(<Dispatch as CollectiveBackend>::exchange(tensor.into_dispatch(), exchange));
    group.failure().map_or(Ok(result), Err)
}

/// What happens to a tensor. Rows are counted along the first dimension, one entry a rank.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    AllReduce(ReduceOp),
    AllGather(Vec<usize>),
    /// Sums.
    ReduceScatter(Vec<usize>),
    Broadcast(usize),
    /// Sums; zeros on all other ranks.
    Reduce(usize),
}

impl Kind {
    /// What happens to the gradient; `None` for what is a constant to autodiff.
    fn backward(&self) -> Option<Kind> {
        match self {
            Kind::AllReduce(op @ (ReduceOp::Sum | ReduceOp::Mean)) => Some(Kind::AllReduce(*op)),
            Kind::AllReduce(ReduceOp::Min | ReduceOp::Max | ReduceOp::Product) => None,
            Kind::AllGather(rows) => Some(Kind::ReduceScatter(rows.clone())),
            Kind::ReduceScatter(rows) => Some(Kind::AllGather(rows.clone())),
            Kind::Broadcast(root) => Some(Kind::Reduce(*root)),
            Kind::Reduce(root) => Some(Kind::Broadcast(*root)),
        }
    }

    fn output_shape(&self, mut shape: Shape, rank: usize) -> Shape {
        match self {
            Kind::AllGather(rows) => shape[0] = rows.iter().sum(),
            Kind::ReduceScatter(rows) => shape[0] = rows[rank],
            Kind::AllReduce(_) | Kind::Broadcast(_) | Kind::Reduce(_) => {}
        }
        shape
    }
}

/// One collective on a tensor, as Burn's backends take it.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub(crate) group: ProcessGroup,
    pub(crate) kind: Arc<Kind>,
}

impl Exchange {
    /// For an operation of our own that reduces on its way forwards or backwards.
    pub(crate) fn all_reduce(group: &ProcessGroup, op: ReduceOp) -> Self {
        Exchange { group: group.clone(), kind: Arc::new(Kind::AllReduce(op)) }
    }

    /// Likewise, with `rows` of every rank.
    pub(crate) fn all_gather(group: &ProcessGroup, rows: Vec<usize>) -> Self {
        Exchange { group: group.clone(), kind: Arc::new(Kind::AllGather(rows)) }
    }

    fn apply<T: crate::Element + burn::tensor::Element>(&self, data: &TensorData) -> Result<Vec<T>> {
        let unreadable = |e| Error::Invalid(format!("a tensor's own data cannot be read: {e:?}"));
        let mut values = data.as_slice::<T>().map_err(unreadable)?.to_vec();
        let row: usize = data.shape()[1..].iter().product();
        let (group, rank) = (&self.group, self.group.rank());
        match &*self.kind {
            Kind::AllReduce(op) => group.all_reduce(&mut values, *op)?,
            Kind::AllGather(rows) => {
                // The lengths are known, so that one call of equal parts will do.
                values.resize(rows.iter().max().map_or(0, |longest| longest * row), T::zeroed());
                let all = group.all_gather(&values)?;
                values = all.iter().zip(rows).flat_map(|(part, rows)| &part[..rows * row]).copied().collect();
            }
            Kind::Broadcast(root) => group.broadcast(&mut values, *root)?,
            Kind::ReduceScatter(rows) => {
                group.all_reduce(&mut values, ReduceOp::Sum)?;
                let start: usize = rows[..rank].iter().sum();
                values = values[start * row..(start + rows[rank]) * row].to_vec();
            }
            Kind::Reduce(root) => {
                group.all_reduce(&mut values, ReduceOp::Sum)?;
                if rank != *root {
                    values.fill(T::zeroed());
                }
            }
        }
        Ok(values)
    }

    fn on_host(&self, data: TensorData) -> TensorData {
        let shape = self.kind.output_shape(data.shape().clone(), self.group.rank());
        let dtype = data.dtype();
        let result = match dtype {
            DType::F32 | DType::Flex32 => self.apply::<f32>(&data).map(|v| TensorData::new(v, shape.clone())),
            DType::F64 => self.apply::<f64>(&data).map(|v| TensorData::new(v, shape.clone())),
            DType::F16 => self.apply::<f16>(&data).map(|v| TensorData::new(v, shape.clone())),
            DType::BF16 => self.apply::<bf16>(&data).map(|v| TensorData::new(v, shape.clone())),
            other => Err(Error::Invalid(format!("collectives on tensors know float types, not {other:?}"))),
        };
        result.unwrap_or_else(|error| {
            self.group.abort(error.to_string());
            TensorData::full_dtype(shape, 0.0, dtype)
        })
    }
}

/// A Burn backend whose tensors can take part in a collective.
#[cfg_attr(feature = "cube", backend_extension(Autodiff, Flex, Cube))]
#[cfg_attr(not(feature = "cube"), backend_extension(Autodiff, Flex))]
pub trait CollectiveBackend: Backend {
    /// Zeros if the group fails, which it then remembers.
    fn exchange(tensor: FloatTensor<Self>, exchange: Exchange) -> FloatTensor<Self>;
}

/// Device to host.
///
/// # Errors
/// If the device fails.
pub(crate) fn read<B: Backend>(tensor: FloatTensor<B>) -> Result<TensorData, String> {
    match burn::tensor::try_read_sync(B::float_into_data(tensor)) {
        Some(Ok(data)) => Ok(data),
        Some(Err(error)) => Err(format!("its device failed: {error}")),
        None => Err("its device cannot be read synchronously".into()),
    }
}

/// Device to host, collective, host to device.
fn through_host<B: Backend>(tensor: FloatTensor<B>, exchange: &Exchange) -> FloatTensor<B> {
    let (device, shape, dtype) = (tensor.device(), tensor.shape(), tensor.dtype());
    let data = read::<B>(tensor).unwrap_or_else(|reason| {
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
