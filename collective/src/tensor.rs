//! Differentiable collectives on `Tensor<D>`, for all float types and Burn devices.
//!
//! A tensor on a GPU with a device transport ([`ProcessGroup::attach`]) stays there; others go through host
//! memory. The gradient of a collective is a collective, too, so that every rank must run backward through
//! it. Gradient checkpointing never repeats one, because the operations count as compute-bound.

mod backend;

pub(crate) use backend::exchange;

use crate::exchange::{Exchange, Kind};
use crate::{Error, ProcessGroup, ReduceOp, Result};
use burn::{
    backend::Flex,
    tensor::{FloatDType, Tensor},
};
use kernels::host_tensor::is_flex;

/// The reduction of all ranks' tensors, with the same bits on every rank.
///
/// Backward, `Sum` and `Mean` reduce the gradients in the same way. `Min`, `Max` and `Product` are constants
/// to autodiff.
///
/// # Errors
/// If the group fails, or the ranks' tensors differ in their number of elements.
pub fn all_reduce<const D: usize>(
    tensor: Tensor<D>,
    group: &ProcessGroup,
    op: ReduceOp,
) -> Result<Tensor<D>> {
    run(tensor, Exchange::new(group, Kind::AllReduce(op)))
}

/// The concatenation of `parts` `[n]`, multiplied by `factor`, and of `tail`, in f32 on one device. On a CUDA device, a
/// launch writes up to 32 parts.
pub(crate) fn concatenate(parts: Vec<Tensor<1>>, factor: f32, tail: Option<Tensor<1>>) -> Tensor<1> {
    #[cfg(feature = "cuda")]
    if let Some(all) = kernels::cuda::ManyTensors::from_tensors(parts.iter().chain(&tail)) {
        return all.concatenate(factor, parts.len());
    }
    let scale = |part: Tensor<1>| if factor == 1.0 { part } else { part.mul_scalar(factor) };
    let parts = parts.into_iter().map(|part| scale(part.cast(FloatDType::F32)));
    Tensor::cat(parts.chain(tail).collect(), 0)
}

/// The parts of a [`concatenate`]d tensor, which have these lengths: on a CPU and with CUDA in its memory.
pub(crate) fn split(whole: Tensor<1>, lengths: &[usize]) -> Vec<Tensor<1>> {
    #[cfg(feature = "cuda")]
    if let Some(parts) = kernels::cuda::split(&whole, lengths) {
        return parts;
    }
    let mut end = 0;
    let part = |length: &usize| {
        end += length;
        whole.clone().slice(end - length..end)
    };
    lengths.iter().map(part).collect()
}

/// A sum over all ranks in progress.
pub(crate) struct Reduction {
    /// The result, which must not be read before [`finish`].
    tensor: Tensor<1>,
    /// `None` if it is finished.
    #[cfg(feature = "cuda")]
    started: Option<crate::cuda::Started>,
}

/// Starts a sum over all ranks, for rank `root` or for all ranks, without waiting for the other ranks if the tensor is on
/// the group's device.
///
/// The device runs other work at the same time, until [`finish`]. Elsewhere the sum is complete when this returns. On
/// ranks other than `root`, the result is arbitrary.
///
/// # Errors
/// If the group fails.
pub(crate) fn start_sum(tensor: Tensor<1>, group: &ProcessGroup, root: Option<usize>) -> Result<Reduction> {
    let kind = root.map_or(Kind::AllReduce(ReduceOp::Sum), Kind::Reduce);
    #[cfg(feature = "cuda")]
    if let Ok(primitive) = tensor.clone().try_into_primitive::<burn::backend::Cube>()
        && crate::cuda::is_on(&primitive, group)
    {
        drop(tensor);
        let (result, started) = crate::cuda::start(primitive, group, &kind)?;
        let tensor = Tensor::from_primitive::<burn::backend::Cube>(result);
        return Ok(Reduction { tensor, started: Some(started) });
    }
    let tensor = run(tensor, Exchange::new(group, kind))?;
    Ok(Reduction {
        tensor,
        #[cfg(feature = "cuda")]
        started: None,
    })
}

/// The results of reductions of one group, in the order in which they were started.
///
/// Work submitted to the device afterwards waits for them there. If the device fails, so does the group.
pub(crate) fn finish(reductions: Vec<Option<Reduction>>) -> Vec<Option<Tensor<1>>> {
    // They run in sequence on one stream.
    #[cfg(feature = "cuda")]
    if let Some(last) =
        reductions.iter().flatten().filter_map(|reduction| reduction.started.as_ref()).next_back()
    {
        last.hold_device();
    }
    reductions.into_iter().map(|reduction| reduction.map(|reduction| reduction.tensor)).collect()
}

/// The concatenation of all ranks' tensors along the first dimension, which may differ between ranks.
///
/// Backward, each rank receives the sum of all ranks' gradients of its rows.
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
    run(tensor, Exchange::new(group, Kind::AllGather(all.iter().map(|shape| shape[0]).collect())))
}

/// The rows of this rank in the reduction of all ranks' tensors.
///
/// The first dimension is split into near-equal parts: `len / n` rows, and one more for the first `len % n`
/// ranks. Backward, gradients are gathered.
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
            return Err(Error::Invalid(format!(
                "reduce_scatter of tensors supports Sum and Mean, not {op:?}"
            )));
        }
    };
    let (len, n) = (tensor.dims()[0], group.world_size());
    let rows = (0..n).map(|rank| len / n + usize::from(rank < len % n)).collect();
    run(tensor, Exchange::new(group, Kind::ReduceScatter(rows)))
}

/// The tensor of rank `root`, on every rank.
///
/// Backward, `root` receives the sum of all gradients, the other ranks' tensors none.
///
/// # Errors
/// If the group fails, or there is no rank `root`.
pub fn broadcast<const D: usize>(tensor: Tensor<D>, group: &ProcessGroup, root: usize) -> Result<Tensor<D>> {
    run(tensor, Exchange::new(group, Kind::Broadcast(root)))
}

/// A collective of a training step, which does not wait for the other ranks if the tensor is on the group's device.
///
/// # Errors
/// If the group fails.
pub(crate) fn run_in_step(tensor: Tensor<1>, group: &ProcessGroup, kind: Kind) -> Result<Tensor<1>> {
    run(tensor, Exchange::of_step(group, kind))
}

/// Runs a collective. Inside Burn's graph it cannot return an error: it then returns zeros, and the group
/// keeps the error.
fn run<const D: usize>(tensor: Tensor<D>, exchange: Exchange) -> Result<Tensor<D>> {
    let group = exchange.group.clone();
    let on_host = is_flex(&tensor.device());
    let tensor = match exchange.kind.backward() {
        Some(_) => tensor.into_dispatch(),
        None => tensor.set_require_grad(false).into_dispatch(),
    };
    let result = match on_host {
        true => backend::recorded::<Flex, D>(tensor, exchange),
        #[cfg(feature = "cube")]
        false => backend::recorded::<burn::backend::Cube, D>(tensor, exchange),
        #[cfg(not(feature = "cube"))]
        false => None,
    };
    group.failure().map_or(Ok(result.expect("a tensor of an enabled backend")), Err)
}
