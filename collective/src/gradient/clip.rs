//! Gradient clipping by the global norm.

use super::Reducer;
use crate::{
    ReduceOp, Result,
    device_error::read_data,
    exchange::Kind,
    parameters::{TensorList, put, reshaped, take},
    tensor,
};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType, Shape, Tensor};
#[cfg(feature = "cuda")]
use kernels::cuda::ManyTensors;
use kernels::host_tensor::is_flex;

/// Factor for gradients whose squares overflow f32.
///
/// 2^-96 reduces f32's largest value to 4e9. Values that underflow are negligible in a norm above 1.8e19, the
/// square root of f32's largest value.
const DOWN: f64 = 1.0 / (1u128 << 96) as f64;

/// Clips the gradients of `module` to a global norm of `max_norm`, and returns the norm before.
///
/// All gradients are multiplied by `max_norm / (norm + 1e-6)` if that is below 1, as in PyTorch's
/// `clip_grad_norm_` (Pascanu et al. 2013, arXiv 1211.5063). Averaged gradients have the same bits on all ranks, so
/// no communication is needed. Gradients of [`shard_optimizer`](super::ReducerOptions::shard_optimizer) are a part only:
/// clip them with [`StepOptions::clip_grad_norm`](crate::StepOptions::clip_grad_norm).
///
/// The norm does not overflow: it is infinite or NaN only if a gradient is. The returned gradients are then NaN or
/// 0, as in PyTorch. Check the norm before the optimizer step.
///
/// # Errors
/// If the device cannot be read.
pub fn clip_by_global_norm<M: Module>(
    mut grads: GradientsParams,
    module: &M,
    max_norm: f64,
) -> Result<(GradientsParams, f64)> {
    let (clipped, norm) = clip_on_host(take(&mut grads, module), max_norm, None)?;
    put(&mut grads, clipped, module);
    Ok((grads, norm))
}

fn clip_on_host(all: TensorList, max_norm: f64, reducer: Option<&Reducer>) -> Result<(TensorList, f64)> {
    let norm = global_norm(&all, reducer)?;
    let factor = max_norm / (norm + 1e-6);
    Ok((if factor < 1.0 || factor.is_nan() { scale(all, factor) } else { all }, norm))
}

/// Global norm of all gradients before clipping.
#[derive(Debug)]
pub(crate) enum Norm {
    Host(f64),
    /// `[1]`, f32.
    Device(Box<Tensor<1>>),
}

impl Reducer {
    /// [`clip_by_global_norm`] without waiting for a device, of averaged gradients.
    ///
    /// On a device, norm and factor are f32 tensors, and all ranks use the sums of rank 0, because devices may sum in
    /// different orders. On a CUDA device, gradients in f32 share their launches. If each rank has the
    /// gradients of its shard only, the norm is that of all shards; on a CPU it has the same bits as without shards.
    ///
    /// # Errors
    /// If the device cannot be read, or the group fails.
    pub(crate) fn clip<M: Module>(
        &self,
        mut grads: GradientsParams,
        module: &M,
        max_norm: f64,
    ) -> Result<(GradientsParams, Norm)> {
        let all = take(&mut grads, module);
        let device = module.devices().into_iter().next().unwrap_or_default().without_autodiff();
        let (clipped, norm) = if is_flex(&device) || (all.is_empty() && !self.is_sharded()) {
            let (clipped, norm) = clip_on_host(all, max_norm, Some(self))?;
            (clipped, Norm::Host(norm))
        } else {
            let all_ranks = |sums| {
                let Some(sender) = &self.sender else { return Ok(sums) };
                let kind =
                    if self.is_sharded() { Kind::AllReduce(ReduceOp::Sum) } else { Kind::Broadcast(0) };
                tensor::run_in_step(sums, &sender.group, kind)
            };
            let (clipped, norm) = clip_on_device(all, &device, max_norm, all_ranks)?;
            (clipped, Norm::Device(Box::new(norm)))
        };
        put(&mut grads, clipped, module);
        Ok((grads, norm))
    }
}

/// Clips gradients on `device`, and returns the norm `[1]`.
///
/// `all_ranks` returns the same sums of squares `[2]` on all ranks: of the gradients, and of those multiplied by [`DOWN`].
fn clip_on_device(
    all: TensorList,
    device: &Device,
    max_norm: f64,
    all_ranks: impl FnOnce(Tensor<1>) -> Result<Tensor<1>>,
) -> Result<(TensorList, Tensor<1>)> {
    #[cfg(feature = "cuda")]
    if let Some(tensors) = ManyTensors::from_tensors(all.iter().map(|(_, grad)| grad)) {
        let norm = norm_of(all_ranks(tensors.squares(DOWN as f32).sum_dim(1).reshape([2]))?);
        let scaled = tensors.scale(factor_for(norm.clone(), max_norm));
        return Ok((all.into_iter().map(|(id, _)| id).zip(scaled).collect(), norm));
    }
    let sums = [None, Some(DOWN)].map(|factor| {
        let sum = squares(&all, factor).into_iter().reduce(|sum, part| sum + part);
        sum.unwrap_or_else(|| Tensor::zeros([1], (device, DType::F32)))
    });
    let norm = norm_of(all_ranks(Tensor::cat(sums.into(), 0))?);
    let factor = factor_for(norm.clone(), max_norm);
    Ok((all.into_iter().map(|(id, grad)| (id, scale_on_device(grad, &factor))).collect(), norm))
}

/// The norm `[1]` of values with these sums of squares `[2]`, the second after multiplication by [`DOWN`].
fn norm_of(sums: Tensor<1>) -> Tensor<1> {
    let [sum, low] = [0, 1].map(|at| sums.clone().slice(at..at + 1));
    let overflow = sum.clone().is_finite().bool_not();
    sum.sqrt().mask_where(overflow, low.sqrt().div_scalar(DOWN))
}

/// The factor `[1]` of gradients with this norm.
fn factor_for(norm: Tensor<1>, max_norm: f64) -> Tensor<1> {
    let factor = norm.add_scalar(1e-6).recip().mul_scalar(max_norm);
    // A NaN factor makes the gradients NaN, as on the host.
    let unclipped = factor.clone().greater_equal_elem(1.0);
    factor.mask_fill(unclipped, 1.0)
}

/// Multiplies a gradient by `factor` `[1]`, in f32.
fn scale_on_device(grad: Tensor<1>, factor: &Tensor<1>) -> Tensor<1> {
    let ones = Shape::from(vec![1; grad.shape().num_dims()]);
    let factor = reshaped(factor.clone().to_device(&grad.device()), ones);
    match grad.dtype() {
        DType::F32 => grad * factor,
        dtype => (grad.cast(FloatDType::F32) * factor).cast(FloatDType::from(dtype)),
    }
}

/// Global norm of gradients, of all shards of `reducer`; 0 if there are none.
///
/// # Errors
/// If the device cannot be read, or the group fails.
pub(super) fn global_norm(all: &TensorList, reducer: Option<&Reducer>) -> Result<f64> {
    let norm = sum_of_squares(all, None, reducer)?.sqrt();
    Ok(if norm.is_finite() { norm } else { sum_of_squares(all, Some(DOWN), reducer)?.sqrt() / DOWN })
}

/// Sum of squares of all gradients, multiplied by `factor` first.
fn sum_of_squares(all: &TensorList, factor: Option<f64>, reducer: Option<&Reducer>) -> Result<f64> {
    let mut sums = Vec::new();
    if !all.is_empty() {
        // One transfer for all gradients.
        sums = read_data(Tensor::cat(squares(all, factor), 0))?.iter::<f32>().collect();
    }
    if let Some(Reducer { plan, sender: Some(sender), .. }) = reducer.filter(|reducer| reducer.is_sharded()) {
        // Adding zeros is exact, so that the order of the parameters decides the rounding, as with whole gradients.
        let mut by_slot = vec![0.0; plan.slots.len()];
        let slots = all.iter().map(|(id, _)| plan.slot_of(*id));
        slots
            .zip(sums)
            .filter_map(|(slot, sum)| Some((slot?, sum)))
            .for_each(|(slot, sum)| by_slot[slot] = sum);
        sender.group.all_reduce(&mut by_slot, ReduceOp::Sum)?;
        sums = by_slot;
    }
    Ok(sums.into_iter().map(f64::from).sum())
}

/// Sums of squares `[1]` of each gradient, multiplied by `factor` first, on one device.
fn squares(all: &TensorList, factor: Option<f64>) -> Vec<Tensor<1>> {
    let Some(device) = all.first().map(|(_, grad)| grad.device()) else { return Vec::new() };
    let square = |(_, grad): &(_, Tensor<1>)| {
        let grad = match grad.dtype() {
            // 256 squared is infinite in f16.
            DType::F16 | DType::BF16 => grad.clone().cast(FloatDType::F32),
            _ => grad.clone(),
        };
        let grad = match factor {
            Some(factor) => grad.mul_scalar(factor),
            None => grad,
        };
        grad.square().sum().cast(FloatDType::F32).to_device(&device)
    };
    all.iter().map(square).collect()
}

/// Multiplies all gradients by `factor`.
pub(crate) fn scaled<M: Module>(mut grads: GradientsParams, module: &M, factor: f64) -> GradientsParams {
    if factor != 1.0 {
        let all = take(&mut grads, module);
        put(&mut grads, scale(all, factor), module);
    }
    grads
}

fn scale(all: TensorList, factor: f64) -> TensorList {
    let scale = |grad: Tensor<1>| match factor {
        // In two steps where the factor is subnormal in f32, or 0.
        tiny if tiny < f64::from(f32::MIN_POSITIVE) => grad.mul_scalar(DOWN).mul_scalar(tiny / DOWN),
        factor => grad.mul_scalar(factor),
    };
    all.into_iter().map(|(id, grad)| (id, scale(grad))).collect()
}
