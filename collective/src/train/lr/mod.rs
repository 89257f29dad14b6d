//! Learning rate of every optimizer step: scaling with the world size, warm-up and schedules.
//!
//! The global batch grows with the world size, and the learning rate with it (Goyal et al. 2017, arXiv 1706.02677).

/// Implements Burn's scheduler for a type with a `step` and the rate `at` each, counted from 1. The record contains the
/// step, and a length in steps that may depend on the world size: if it has changed, the schedule continues at the same
/// fraction.
macro_rules! scheduler {
    ($scheduler:ty, $name:literal, |$lr:ident| $length:expr) => {
        impl burn::lr_scheduler::LrScheduler for $scheduler {
            fn step(&mut self) -> f64 {
                self.step += 1;
                self.at(self.step)
            }

            fn to_record(&self) -> burn::lr_scheduler::LrSchedulerRecord {
                let $lr = self;
                let length: Option<usize> = $length;
                burn::lr_scheduler::LrSchedulerRecord::new()
                    .with_scalar("step", self.step)
                    .with_scalar($name, length.unwrap_or(0))
            }

            fn load_record(&mut self, record: burn::lr_scheduler::LrSchedulerRecord) {
                self.step = record.scalar::<usize>("step").unwrap_or(self.step);
                let $lr = &*self;
                let length: Option<usize> = $length;
                if let (Some(before @ 1..), Some(now)) = (record.scalar::<usize>($name), length)
                    && before != now
                {
                    self.step = (self.step as f64 * (now as f64 / before as f64)).round() as usize;
                }
            }
        }
    };
}

mod control;
mod function;
mod range_test;
mod schedule;
mod warmup;

pub use control::{ControlledLr, LrControl};
pub use function::FnLr;
pub use range_test::{RangeTestCurve, RangeTestLr, RangeTestPoint};
pub use schedule::{LrSchedule, ScheduledLr};
pub use warmup::WarmupLr;

use serde::{Deserialize, Serialize};

/// How the learning rate grows with the world size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrScaling {
    /// Factor of the world size: keeps the expected update per sample (Goyal et al. 2017).
    Linear,
    /// Factor of √world size: keeps the variance of the update.
    Sqrt,
    /// No scaling.
    None,
}

impl LrScaling {
    /// The factor of the learning rate for `world_size` ranks.
    pub fn factor(self, world_size: usize) -> f64 {
        match self {
            LrScaling::Linear => world_size as f64,
            LrScaling::Sqrt => (world_size as f64).sqrt(),
            LrScaling::None => 1.0,
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
}
