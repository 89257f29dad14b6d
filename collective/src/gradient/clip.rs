//! Clipping by the norm of all gradients together.

use crate::{Error, Result};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use std::collections::HashSet;

/// Scales all gradients of `module` by the same factor, so that their norm together is at most
/// `max_norm` (Pascanu et al. 2013, arXiv 1211.5063), and returns the norm before. The factor is
/// PyTorch's `clip_grad_norm_`: `max_norm / (norm + 1e-6)`, if that is below 1. Called with averaged
/// gradients, which have the same bits on all ranks, it does the same on all ranks, without
/// communication.
///
/// If the norm is no finite number, gradients are left as they are.
///
/// # Errors
/// If the device cannot be read.
pub fn clip_by_global_norm<M: Module>(
    grads: GradientsParams,
    module: &M,
    max_norm: f64,
) -> Result<(GradientsParams, f64)> {
    let mut squares = Squares { grads: &grads, seen: HashSet::new(), sums: Vec::new() };
    module.visit(&mut squares);
    let sums = squares.sums;
    if sums.is_empty() {
        return Ok((grads, 0.0));
    }
    // One transfer for all.
    let data = Tensor::cat(sums, 0).try_into_data().map_err(|error| Error::Io {
        what: "reading the norm of the gradients".into(),
        reason: error.to_string(),
    })?;
    let norm = data.iter::<f64>().sum::<f64>().sqrt();
    let factor = max_norm / (norm + 1e-6);
    if !norm.is_finite() || factor >= 1.0 {
        return Ok((grads, norm));
    }
    let mut scale = Scale { grads, factor, seen: HashSet::new() };
    module.visit(&mut scale);
    Ok((scale.grads, norm))
}

/// The sum of squares of every gradient once, each `[1]`, on one device.
struct Squares<'a> {
    grads: &'a GradientsParams,
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
            self.grads.register::<D>(param.id, grad.mul_scalar(self.factor));
        }
    }
}
