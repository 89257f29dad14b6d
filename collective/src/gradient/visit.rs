//! Between the gradients of a module, as Burn keeps them, and the buckets.

use super::{buckets::Plan, flight::Flight};
use crate::{Error, Result};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

/// A gradient on the host.
pub(super) fn read<const D: usize>(grad: Tensor<D>) -> Result<TensorData> {
    let broken = |reason: String| Error::Io { what: "reading a gradient from its device".into(), reason };
    grad.try_into_data().map_err(|error| broken(error.to_string()))
}

/// Writes every gradient that is not yet in its bucket. With `keep`, `grads` stay as they are.
///
/// # Errors
/// If a gradient cannot be read, or a parameter has become trainable.
pub(super) fn gather<M: Module>(
    flight: &Flight,
    grads: &mut GradientsParams,
    module: &M,
    keep: bool,
) -> Result<()> {
    let mut gather = Gather { flight, grads, keep, compared: flight.compared(), failure: None };
    module.visit(&mut gather);
    gather.failure.map_or(Ok(()), Err)
}

struct Gather<'a> {
    flight: &'a Flight,
    grads: &'a mut GradientsParams,
    keep: bool,
    compared: usize,
    failure: Option<Error>,
}

impl Gather<'_> {
    fn take<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Result<()> {
        let Some(slot) = self.flight.slot_of(param.id) else {
            return Err(Error::Invalid(format!(
                "parameter {} became trainable after the gradient buckets were made: make a new reducer",
                param.id
            )));
        };
        if self.flight.has(slot) {
            return self.compare(param, slot);
        }
        let grad = if self.keep { self.grads.get::<D>(param.id) } else { self.grads.remove::<D>(param.id) };
        if self.flight.write(slot, grad.map(read).transpose()?) { Ok(()) } else { self.compare(param, slot) }
    }

    fn compare<const D: usize>(&mut self, param: &Param<Tensor<D>>, slot: usize) -> Result<()> {
        if self.compared == 0 {
            return Ok(());
        }
        let first = self.grads.get::<D>(param.id).map(|grad| {
            let length = grad.shape().num_elements();
            read(grad.reshape([length]).slice(0..self.compared.min(length)))
        });
        self.flight.compare(slot, first.transpose()?.as_ref());
        Ok(())
    }
}

impl ModuleVisitor for Gather<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() && self.failure.is_none() {
            self.failure = self.take(param).err();
        }
    }
}

/// The averaged gradients of `module`, without those of parameters that no rank used.
/// On a CPU they are parts of the buckets, which are not copied.
pub(super) fn scatter<M: Module>(
    plan: &Plan,
    buckets: Vec<Vec<f32>>,
    users: &[usize],
    module: &M,
) -> GradientsParams {
    let tensor = |values: Vec<f32>| {
        let length = values.len();
        Tensor::from_data(TensorData::new(values, [length]), (&Device::flex(), DType::F32))
    };
    let buckets = buckets.into_iter().map(tensor).collect();
    let mut scatter = Scatter { plan, buckets, users, grads: GradientsParams::new() };
    module.visit(&mut scatter);
    scatter.grads
}

struct Scatter<'a> {
    plan: &'a Plan,
    buckets: Vec<Tensor<1>>,
    users: &'a [usize],
    grads: GradientsParams,
}

impl ModuleVisitor for Scatter<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(slot) = self.plan.slot_to_fill(param, self.users) else { return };
        let value = param.base();
        let grad = self.buckets[slot.bucket].clone().slice(slot.range.clone()).reshape(value.shape());
        // A gradient lives on the plain device under the autodiff one.
        let grad = grad.to_device(&value.device().inner()).cast(FloatDType::from(value.dtype()));
        self.grads.register::<D>(param.id, grad);
    }
}
