//! A learning-rate scheduler from a function.

use std::{fmt, sync::Arc};

/// Scheduler whose rate is a function of the optimizer step, counted from 1. Its record contains the step.
///
/// ```
/// use burn::lr_scheduler::LrScheduler;
/// use burn_ddp_collective::lr::FnLr;
///
/// let mut lr = FnLr::new(|step| 0.1 / (step as f64).sqrt());
/// assert_eq!(lr.step(), 0.1);
/// ```
#[derive(Clone)]
pub struct FnLr {
    rate: Arc<dyn Fn(usize) -> f64 + Send + Sync>,
    step: usize,
}

impl FnLr {
    /// Creates the scheduler at the start of a run. `rate` must be equal on all ranks.
    pub fn new(rate: impl Fn(usize) -> f64 + Send + Sync + 'static) -> Self {
        Self { rate: Arc::new(rate), step: 0 }
    }

    fn at(&self, step: usize) -> f64 {
        (self.rate)(step)
    }
}

impl fmt::Debug for FnLr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FnLr").field("step", &self.step).finish_non_exhaustive()
    }
}

scheduler!(FnLr, "length", |_lr| None);
