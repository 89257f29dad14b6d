//! The loss of a batch or step, which is read on demand.

use super::engine::first;
use crate::{Result, readback::Readback};
use burn::tensor::Tensor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The loss of a step over the samples of all ranks.
///
/// On a GPU the copy to the host is queued behind the step's work. Reading the value one step later keeps the GPU
/// busy.
#[derive(Clone)]
pub struct Loss {
    /// The totals, whose first is the sum of the loss, and the norm of the gradients if it was on the device.
    values: Arc<Mutex<Readback>>,
    samples: usize,
    synchronised: bool,
}

impl Loss {
    pub(super) fn start(
        totals: Tensor<1>,
        norm: Option<Tensor<1>>,
        samples: usize,
        synchronised: bool,
    ) -> Result<Self> {
        let values = Readback::start([totals].into_iter().chain(norm).collect())?;
        Ok(Self { values: Arc::new(Mutex::new(values)), samples, synchronised })
    }

    /// Mean over the samples of the step, or of this rank's accumulated batch.
    ///
    /// Waits for the device. NaN without samples.
    ///
    /// # Errors
    /// If the device fails.
    pub fn mean(&self) -> Result<f64> {
        Ok(self.sum()? / self.samples as f64)
    }

    /// Sum over the samples, which can be added up over steps. Waits for the device.
    ///
    /// # Errors
    /// If the device fails.
    pub fn sum(&self) -> Result<f64> {
        self.read().map(|values| first(&values[0]))
    }

    /// Number of samples.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Whether this is the loss of a step over all ranks.
    ///
    /// Otherwise it is the loss of this rank's batch, whose gradients are accumulated.
    pub fn is_synchronised(&self) -> bool {
        self.synchronised
    }

    /// Whether the value is on the host.
    pub fn is_ready(&self) -> bool {
        self.values().is_here()
    }

    /// The values of [`values`](Self::values) on the host.
    pub(super) fn read(&self) -> Result<Vec<Vec<f64>>> {
        self.values().wait()
    }

    fn values(&self) -> MutexGuard<'_, Readback> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
