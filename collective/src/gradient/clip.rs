//! Clipping by the norm of all gradients together.

use crate::{Error, Result};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType, Tensor};
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
    let mut scale = Scale { grads, factor, seen: HashSet::new() };
    module.visit(&mut scale);
    Ok((scale.grads, norm))
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
    let mut squares = Squares { grads, factor, seen: HashSet::new(), sums: Vec::new() };
    module.visit(&mut squares);
    if squares.sums.is_empty() {
        return Ok(0.0);
    }
    // One transfer for all.
    let data = Tensor::cat(squares.sums, 0).try_into_data().map_err(|error| Error::Io {
        what: "reading the norm of the gradients".into(),
        reason: error.to_string(),
    })?;
    Ok(data.iter::<f64>().sum())
}

/// The sum of squares of every gradient once, each `[1]`, on one device.
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

struct Scale {
    grads: GradientsParams,
    factor: f64,
    seen: HashSet<ParamId>,
}

impl ModuleVisitor for Scale {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.seen.insert(param.id) {
            return;
        }
        if let Some(grad) = self.grads.remove::<D>(param.id) {
            // In two steps where the factor is subnormal in f32, or 0.
            let scaled = match self.factor {
                tiny if tiny < f64::from(f32::MIN_POSITIVE) => grad.mul_scalar(DOWN).mul_scalar(tiny / DOWN),
                factor => grad.mul_scalar(factor),
            };
            self.grads.register::<D>(param.id, scaled);
        }
    }
}
