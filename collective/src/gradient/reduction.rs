//! The reduction of one step's gradients: in buckets in host memory, or in device memory.

use super::{
    device_buckets::{DeviceBuckets, DeviceGradient},
    host::Values,
    in_flight::InFlightReduction,
};
use crate::Result;
use burn::module::ParamId;
use burn::tensor::{Device, Tensor};
use std::sync::Arc;

/// The sums over all ranks.
#[derive(Default)]
pub(super) struct ReducedGradients {
    /// `None` for a bucket without parameters.
    pub buckets: Vec<Option<Tensor<1>>>,
    /// Ranks on which each parameter had a gradient that counts.
    pub users: Vec<usize>,
    /// Sums of the totals.
    pub totals: Option<Tensor<1>>,
    /// Why the sums are not those of the gradients that backward left, on any rank.
    pub again: Option<String>,
}

/// Where a step's gradients are reduced.
#[derive(Clone, Debug)]
pub(super) enum Reduction {
    Host(Arc<InFlightReduction>),
    Device(Arc<DeviceBuckets>),
}

impl Reduction {
    pub fn slot_of(&self, id: ParamId) -> Option<usize> {
        match self {
            Reduction::Host(host) => host.slot_of(id),
            Reduction::Device(device) => device.slot_of(id),
        }
    }

    /// See [`Arrivals::use_in_forward`](super::arrivals::Arrivals::use_in_forward).
    pub fn used(&self, slot: usize, device: &Device) -> Option<Tensor<1>> {
        match self {
            Reduction::Host(host) => host.used(slot, device),
            Reduction::Device(buckets) => buckets.used(slot, device),
        }
    }

    /// Registers the gradient of one use of a parameter. `read` and `keep` return the sum of all that have
    /// arrived.
    pub fn arrived<T>(
        &self,
        slot: usize,
        gradient: impl FnOnce() -> T,
        read: fn(T) -> Result<Values, String>,
        keep: fn(T) -> DeviceGradient,
    ) {
        match self {
            Reduction::Host(host) => host.arrived(slot, || read(gradient())),
            Reduction::Device(device) => device.arrived(slot, || keep(gradient())),
        }
    }

    /// Whether a gradient is in its bucket. If not, it may still arrive from another thread.
    pub fn has(&self, slot: usize) -> bool {
        match self {
            Reduction::Host(host) => host.has(slot),
            Reduction::Device(device) => device.has(slot),
        }
    }

    /// Writes what backward left of a parameter whose gradient has not arrived; `None` if nothing. Returns false,
    /// and writes nothing, if the gradient has arrived meanwhile.
    ///
    /// # Errors
    /// If the gradient cannot be read from its device.
    pub fn write<const D: usize>(
        &self,
        slot: usize,
        gradient: Option<Tensor<D>>,
        device: &Device,
    ) -> Result<bool> {
        match self {
            Reduction::Host(host) => host.write(slot, gradient),
            Reduction::Device(buckets) => Ok(buckets.write(slot, gradient, device)),
        }
    }

    /// Compares a gradient that has arrived with what backward left.
    ///
    /// # Errors
    /// If the gradient cannot be read from its device.
    pub fn compare<const D: usize>(
        &self,
        slot: usize,
        left: impl FnOnce() -> Option<Tensor<D>>,
    ) -> Result<()> {
        match self {
            Reduction::Host(host) => host.compare(slot, left),
            Reduction::Device(device) => {
                device.compare(slot, left());
                Ok(())
            }
        }
    }

    /// Reduces the remaining buckets, waits for all of them and returns the sums, with those of `totals` `[n]`.
    /// `flags` become sums over all ranks.
    ///
    /// # Errors
    /// The first one, on this rank or in the group.
    pub fn finish(&self, totals: Option<Tensor<1>>, flags: &mut Vec<f32>) -> Result<ReducedGradients> {
        match self {
            Reduction::Host(host) => host.finish(totals, flags),
            Reduction::Device(device) => device.finish(totals, flags),
        }
    }
}
