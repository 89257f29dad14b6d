//! Gradient clipping by the global norm.

use crate::{Result, device_error::read_data};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use kernels::host_tensor::is_flex;
use std::collections::HashSet;

/// Factor for gradients whose squares overflow f32.
///
/// 2^-96 reduces f32's largest value to 4e9. Values that underflow are negligible in a norm above 1.8e19, the
/// square root of f32's largest value.
const DOWN: f64 = 1.0 / (1u128 << 96) as f64;

/// Clips the gradients of `module` to a global norm of `max_norm`, and returns the norm before.
///
/// All gradients are multiplied by `max_norm / (norm + 1e-6)` if that is below 1, as in PyTorch's
/// `clip_grad_norm_` (Pascanu et al. 2013, arXiv 1211.5063). Averaged gradients have the same bits on all ranks, so
/// no communication is needed.
///
/// The norm does not overflow: it is infinite or NaN only if a gradient is. The returned gradients are then NaN or
/// 0, as in PyTorch. Check the norm before the optimizer step.
///
/// # Errors
/// If the device cannot be read.
pub fn clip_by_global_norm<M: Module>(
    grads: GradientsParams,
    module: &M,
    max_norm: f64,
) -> Result<(GradientsParams, f64)> {
    let norm = global_norm(&grads, module)?;
    let factor = max_norm / (norm + 1e-6);
    if factor >= 1.0 {
        return Ok((grads, norm));
    }
    Ok((scale(grads, module, Factor::Host(factor)), norm))
}

/// Global norm of all gradients before clipping.
#[derive(Debug)]
pub(crate) enum Norm {
    Host(f64),
    /// `[1]`, f32.
    Device(Box<Tensor<1>>),
}

/// [`clip_by_global_norm`] without waiting for a device.
///
/// On a device, norm and factor are f32 tensors. `agree` returns the same norm on all ranks, because devices may
/// sum in different orders.
///
/// # Errors
/// If the device cannot be read, or `agree` fails.
pub(super) fn clip<M: Module>(
    grads: GradientsParams,
    module: &M,
    max_norm: f64,
    agree: impl FnOnce(Tensor<1>) -> Result<Tensor<1>>,
) -> Result<(GradientsParams, Norm)> {
    let sums = squares(&grads, module, None);
    if sums.first().is_none_or(|sum| is_flex(&sum.device())) {
        let (grads, norm) = clip_by_global_norm(grads, module, max_norm)?;
        return Ok((grads, Norm::Host(norm)));
    }
    let total = |parts: Vec<Tensor<1>>| parts.into_iter().reduce(|sum, part| sum + part);
    let low = total(squares(&grads, module, Some(DOWN)));
    let Some((sum, low)) = total(sums).zip(low) else { return Ok((grads, Norm::Host(0.0))) };
    let overflow = sum.clone().is_finite().bool_not();
    let norm = agree(sum.sqrt().mask_where(overflow, low.sqrt().div_scalar(DOWN)))?;
    let factor = norm.clone().add_scalar(1e-6).recip().mul_scalar(max_norm);
    // A NaN factor makes the gradients NaN, as on the host.
    let unclipped = factor.clone().greater_equal_elem(1.0);
    let factor = Factor::Device(Box::new(factor.mask_fill(unclipped, 1.0)));
    Ok((scale(grads, module, factor), Norm::Device(Box::new(norm))))
}

/// Global norm of the gradients of `module`; 0 if there are none.
///
/// # Errors
/// If the device cannot be read.
pub(super) fn global_norm<M: Module>(grads: &GradientsParams, module: &M) -> Result<f64> {
    let norm = sum_of_squares(grads, module, None)?.sqrt();
    if norm.is_finite() {
        return Ok(norm);
    }
    Ok(sum_of_squares(grads, module, Some(DOWN))?.sqrt() / DOWN)
}

/// Sum of squares of all gradients, multiplied by `factor` first.
fn sum_of_squares<M: Module>(grads: &GradientsParams, module: &M, factor: Option<f64>) -> Result<f64> {
    let sums = squares(grads, module, factor);
    if sums.is_empty() {
        return Ok(0.0);
    }
    // One transfer for all gradients.
    let data = read_data(Tensor::cat(sums, 0))?;
    Ok(data.iter::<f64>().sum())
}

/// Sums of squares `[1]` of each gradient, multiplied by `factor` first, on one device.
fn squares<M: Module>(grads: &GradientsParams, module: &M, factor: Option<f64>) -> Vec<Tensor<1>> {
    let mut squares = Squares { grads, factor, seen: HashSet::new(), sums: Vec::new() };
    module.visit(&mut squares);
    squares.sums
}

struct Squares<'a> {
    grads: &'a GradientsParams,
    factor: Option<f64>,
    seen: HashSet<ParamId>,
    sums: Vec<Tensor<1>>,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.seen.insert(param.id) {
            return;
        }
        let Some(grad) = self.grads.get::<D>(param.id) else { return };
        let grad = match grad.dtype() {
            // 256 squared is infinite in f16.
            DType::F16 | DType::BF16 => grad.cast(FloatDType::F32),
            _ => grad,
        };
        let grad = match self.factor {
            Some(factor) => grad.mul_scalar(factor),
            None => grad,
        };
        let device: Option<Device> = self.sums.first().map(Tensor::device);
        let sum = grad.square().sum().cast(FloatDType::F32);
        self.sums.push(device.map_or(sum.clone(), |device| sum.to_device(&device)));
    }
}

/// Multiplies all gradients by `factor`.
pub(crate) fn scaled<M: Module>(grads: GradientsParams, module: &M, factor: f64) -> GradientsParams {
    if factor == 1.0 { grads } else { scale(grads, module, Factor::Host(factor)) }
}

fn scale<M: Module>(grads: GradientsParams, module: &M, factor: Factor) -> GradientsParams {
    let mut scale = Scale { grads, factor, seen: HashSet::new() };
    module.visit(&mut scale);
    scale.grads
}

enum Factor {
    Host(f64),
    /// `[1]`, f32.
    Device(Box<Tensor<1>>),
}

impl Factor {
    fn apply<const D: usize>(&self, grad: Tensor<D>) -> Tensor<D> {
        match self {
            // In two steps where the factor is subnormal in f32, or 0.
            Factor::Host(tiny) if *tiny < f64::from(f32::MIN_POSITIVE) => {
                grad.mul_scalar(DOWN).mul_scalar(tiny / DOWN)
            }
            Factor::Host(factor) => grad.mul_scalar(*factor),
            Factor::Device(factor) => {
                let factor = Tensor::clone(factor).to_device(&grad.device()).reshape([1; D]);
                match grad.dtype() {
                    DType::F32 => grad * factor,
                    dtype => (grad.cast(FloatDType::F32) * factor).cast(FloatDType::from(dtype)),
                }
            }
        }
    }
}

struct Scale {
    grads: GradientsParams,
    factor: Factor,
    seen: HashSet<ParamId>,
}

impl ModuleVisitor for Scale {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.seen.insert(param.id) {
            return;
        }
        if let Some(grad) = self.grads.remove::<D>(param.id) {
            self.grads.register::<D>(param.id, self.factor.apply(grad));
        }
    }
}
