//! Changes of a schedule's learning rate during a run.

use burn::lr_scheduler::{LrScheduler, LrSchedulerRecord, module_lr_scheduler::ModuleLrScheduler};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Entry of a scheduler's record.
const FACTOR: &str = "lr_factor";
/// Prefix of the base schedule in the record of a `ModuleLrScheduler`.
const BASE: &str = "0";

/// Factor of the learning rates of schedulers that [`schedule`](Self::schedule) has made.
///
/// Clones have the same factor.
#[derive(Clone, Debug)]
pub struct LrControl(Arc<AtomicU64>);

impl Default for LrControl {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(1.0_f64.to_bits())))
    }
}

impl LrControl {
    /// The factor; 1 at the start of a run.
    pub fn factor(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    /// Sets the factor. It must be equal on all ranks.
    pub fn set_factor(&self, factor: f64) {
        self.0.store(factor.to_bits(), Ordering::Relaxed);
    }

    /// Returns a scheduler whose rates are the base rates of `schedule` times the factor, which is part of its record.
    pub fn schedule(&self, schedule: impl Into<ModuleLrScheduler>) -> ControlledLr {
        ControlledLr { schedule: schedule.into(), scale: 1.0, control: self.clone() }
    }
}

/// A scheduler with the factor of an [`LrControl`].
#[derive(Clone)]
pub struct ControlledLr {
    schedule: ModuleLrScheduler,
    scale: f64,
    control: LrControl,
}

impl ControlledLr {
    /// The scheduler with its rates multiplied by `scale`, for a group of parameters.
    pub fn scaled(&self, scale: f64) -> Self {
        Self { scale: self.scale * scale, ..self.clone() }
    }
}

impl LrScheduler for ControlledLr {
    fn step(&mut self) -> f64 {
        self.schedule.step().base() * self.scale * self.control.factor()
    }

    fn to_record(&self) -> LrSchedulerRecord {
        self.schedule.to_record().record(BASE).with_scalar(FACTOR, self.control.factor())
    }

    fn load_record(&mut self, record: LrSchedulerRecord) {
        self.control.set_factor(record.scalar(FACTOR).unwrap_or(1.0));
        self.schedule = self.schedule.clone().load_record(LrSchedulerRecord::new().with_record(BASE, record));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::lr::WarmupLr;

    #[test]
    fn a_record_carries_the_factor_and_the_position() {
        let schedule = || WarmupLr::new(0.0, 1.0, 4);
        let (control, resumed) = (LrControl::default(), LrControl::default());
        let mut lr = control.schedule(schedule());
        assert_eq!([lr.step(), lr.step()], [0.25, 0.5]);
        control.set_factor(0.5);
        let mut again = resumed.schedule(schedule());
        again.load_record(lr.to_record());
        assert_eq!((lr.step(), again.step(), resumed.factor()), (0.375, 0.375, 0.5));
    }
}
