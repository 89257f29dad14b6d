//! Clipping by the norm of all gradients together.

use crate::{Result, device_error::read_data};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use kernels::host_tensor::is_flex;
use std::collections::HashSet;

/// Where squares overflow f32, gradients are multiplied by this first: 2^-96, which brings f32's largest
/// value to 4e9 and loses nothing that counts in a norm above f32's largest square root, 1.8e19.
const DOWN: f64 = 1.0 / (1u128 << 96) as f64;

/// Scales all gradients of `module` by the same factor, so that their norm together is at most
/// `max_norm` (Pascanu et al. 2013, arXiv 1211.5063), and returns the norm before. The factor is
/// PyTorch's `clip_grad_norm_`: `max_norm / (norm + 1e-6)`, if that is below 1. Called with averaged
/// gradients, which have the same bits on all ranks, it does the same on all ranks, without
/// communication.
///
/// The norm does not overflow: it is infinite or NaN only if a gradient is, and the gradients returned
/// are then NaN or 0, as PyTorch's. Check it before the optimizer takes them.
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

/// The norm of all gradients together, before they were clipped.
#[derive(Debug)]
pub(crate) enum Norm {
    Host(f64),
    /// `[1]`, f32.
    Device(Box<Tensor<1>>),
}

/// [`clip_by_global_norm`] without waiting for a device: on one, norm and factor are f32 tensors. `agree` gives all
/// ranks the same norm, because devices may add up in different orders.
///
/// # Errors
/// If the device cannot be read, or the ranks cannot agree.
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
    // A factor that is NaN stays so, and makes the gradients NaN, as on the host.
    let unclipped = factor.clone().greater_equal_elem(1.0);
    let factor = Factor::Device(Box::new(factor.mask_fill(unclipped, 1.0)));
    Ok((scale(grads, module, factor), Norm::Device(Box::new(norm))))
}

/// The norm of all gradients of `module` together; 0 if there are none.
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

/// The sum of all squares, of gradients multiplied by `factor`.
fn sum_of_squares<M: Module>(grads: &GradientsParams, module: &M, factor: Option<f64>) -> Result<f64> {
    let sums = squares(grads, module, factor);
    if sums.is_empty() {
        return Ok(0.0);
    }
    // One transfer for all.
    let data = read_data(Tensor::cat(sums, 0))?;
    Ok(data.iter::<f64>().sum())
}

/// The sum of squares of every gradient once, multiplied by `factor`, each `[1]`, on one device.
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

/// All gradients times `factor`.
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
