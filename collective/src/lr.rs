//! Learning rate against world size: the global batch grows with the world, and the rate with it
//! (Goyal et al. 2017, arXiv 1706.02677), after a gradual warm-up if one is asked for.

use burn::lr_scheduler::{LrScheduler, LrSchedulerRecord};
use serde::{Deserialize, Serialize};

/// How the learning rate grows with the world size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrScaling {
    /// × world size: keeps the expected update per sample (Goyal et al. 2017).
    Linear,
    /// × √world size: keeps the variance of the update.
    Sqrt,
    /// × 1: the same rate at every world size.
    None,
}

impl LrScaling {
    /// The factor at `world_size` ranks.
    pub fn factor(self, world_size: usize) -> f64 {
        match self {
            LrScaling::Linear => world_size as f64,
            LrScaling::Sqrt => (world_size as f64).sqrt(),
            LrScaling::None => 1.0,
        }
    }
}

/// From `base` in equal steps to `target` over the first `warmup_steps` optimizer steps, then
/// constant. A Burn learning-rate scheduler, so that checkpoints carry its position.
#[derive(Clone, Copy, Debug)]
pub struct WarmupLr {
    /// Where the rate begins, before the first step.
    pub base: f64,
    /// Where it ends, and stays.
    pub target: f64,
    /// Optimizer steps from one to the other.
    pub warmup_steps: usize,
    step: usize,
}

impl WarmupLr {
    /// At its first step; without warm-up steps it is `target` from the beginning.
    pub fn new(base: f64, target: f64, warmup_steps: usize) -> Self {
        Self { base, target, warmup_steps, step: 0 }
    }

    /// The rate of optimizer step `step`, from 1.
    pub fn at(&self, step: usize) -> f64 {
        if step >= self.warmup_steps {
            return self.target;
        }
        self.base + (self.target - self.base) * step as f64 / self.warmup_steps as f64
    }
}

impl LrScheduler for WarmupLr {
    fn step(&mut self) -> f64 {
        self.step += 1;
        self.at(self.step)
    }

    fn to_record(&self) -> LrSchedulerRecord {
        LrSchedulerRecord::new().with_scalar("step", self.step).with_scalar("warmup_steps", self.warmup_steps)
    }

    /// A warm-up of another length, as after a change of the world size, goes on where the recorded
    /// one was in proportion.
    fn load_record(&mut self, record: LrSchedulerRecord) {
        self.step = record.scalar::<usize>("step").unwrap_or(self.step);
        match record.scalar::<usize>("warmup_steps") {
            Some(length) if length > 0 && length != self.warmup_steps => {
                let scale = self.warmup_steps as f64 / length as f64;
                self.step = (self.step as f64 * scale).round() as usize;
            }
            Some(_) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_as_in_the_paper() {
        assert_eq!(LrScaling::Linear.factor(8), 8.0);
        assert_eq!(LrScaling::Sqrt.factor(16), 4.0);
        assert_eq!(LrScaling::None.factor(8), 1.0);
        assert_eq!(LrScaling::Linear.factor(1), 1.0);
    }

    #[test]
    fn warm_up_rises_in_equal_steps_and_then_stays() {
        let mut lr = WarmupLr::new(0.1, 0.5, 4);
        let seen: Vec<f64> = (0..6).map(|_| lr.step()).collect();
        for (seen, wanted) in seen.iter().zip([0.2, 0.3, 0.4, 0.5, 0.5, 0.5]) {
            assert!((seen - wanted).abs() < 1e-12, "{seen} against {wanted}");
        }
        assert_eq!(WarmupLr::new(0.1, 0.5, 0).step(), 0.5);
    }

    #[test]
    fn a_record_carries_the_position() {
        let mut lr = WarmupLr::new(0.0, 1.0, 10);
        (0..3).for_each(|_| _ = lr.step());
        let mut other = WarmupLr::new(0.0, 1.0, 10);
        other.load_record(lr.to_record());
        assert_eq!(lr.step(), other.step());
        // At twice the world size a warm-up has half the steps.
        let mut half = WarmupLr::new(0.0, 1.0, 5);
        half.load_record(lr.to_record());
        assert_eq!(half.step(), 0.6);
    }
}
