//! Learning-rate schedules for runs of known length, with PyTorch's formulas and names.

use super::WarmupLr;
use serde::{Serialize, Serializer};
use std::{f64::consts::PI, fmt, str::FromStr};

/// PyTorch's `div_factor`: maximum rate ÷ initial rate of one-cycle.
const FIRST: f64 = 25.0;
/// PyTorch's `final_div_factor`: initial rate ÷ final rate of one-cycle.
const LAST: f64 = 1e4;

/// Schedule of the learning rate over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LrSchedule {
    /// Constant after the warm-up.
    #[default]
    Constant,
    /// Increase to the maximum rate, then decrease to almost zero (Smith and Topin 2017, arXiv 1708.07120).
    ///
    /// PyTorch's `OneCycleLR` with `cycle_momentum=False`.
    OneCycle {
        /// Fraction of the run, 0 to 1, over which the rate increases.
        pct_start: f64,
    },
    /// Decrease from the maximum rate to zero over half a cosine, after the warm-up.
    ///
    /// PyTorch's `CosineAnnealingLR` (Loshchilov and Hutter 2016, arXiv 1608.03983).
    Cosine,
}

impl LrSchedule {
    /// PyTorch's default `pct_start`.
    pub const PCT_START: f64 = 0.3;
}

impl FromStr for LrSchedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':').map_or((text, None), |(name, value)| (name, Some(value))) {
            ("constant", None) => Ok(LrSchedule::Constant),
            ("cosine", None) => Ok(LrSchedule::Cosine),
            ("one-cycle", None) => Ok(LrSchedule::OneCycle { pct_start: LrSchedule::PCT_START }),
            ("one-cycle", Some(part)) => match part.parse() {
                Ok(pct_start) if (0.0..=1.0).contains(&pct_start) => Ok(LrSchedule::OneCycle { pct_start }),
                Ok(_) | Err(_) => Err("PCT_START of one-cycle must be a number from 0 to 1".into()),
            },
            _ => Err("expected constant, one-cycle, one-cycle:PCT_START or cosine".into()),
        }
    }
}

impl fmt::Display for LrSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LrSchedule::Constant => f.write_str("constant"),
            LrSchedule::OneCycle { pct_start } => write!(f, "one-cycle:{pct_start}"),
            LrSchedule::Cosine => f.write_str("cosine"),
        }
    }
}

impl Serialize for LrSchedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Burn learning-rate scheduler for an [`LrSchedule`], whose record contains the position.
#[derive(Clone, Copy, Debug)]
pub struct ScheduledLr {
    /// The schedule after the warm-up.
    pub schedule: LrSchedule,
    /// The warm-up; its target is the maximum rate.
    pub warmup: WarmupLr,
    /// Number of optimizer steps of the whole run.
    pub total_steps: usize,
    /// Number of optimizer steps per epoch; `None` if the run's length is in steps.
    pub epoch_steps: Option<usize>,
    step: usize,
}

impl ScheduledLr {
    /// The schedule at the start of a run.
    ///
    /// `epoch_steps` is `None` if `total_steps` does not depend on the length of an epoch.
    pub fn new(
        schedule: LrSchedule,
        warmup: WarmupLr,
        total_steps: usize,
        epoch_steps: Option<usize>,
    ) -> Self {
        Self { schedule, warmup, total_steps, epoch_steps, step: 0 }
    }

    /// The rate of optimizer step `step`, counted from 1.
    pub fn at(&self, step: usize) -> f64 {
        let WarmupLr { target: highest, warmup_steps, .. } = self.warmup;
        let step = step.clamp(1, self.total_steps.max(1));
        match self.schedule {
            LrSchedule::Constant => self.warmup.at(step),
            LrSchedule::OneCycle { pct_start } => one_cycle(highest, pct_start, step - 1, self.total_steps),
            LrSchedule::Cosine if step <= warmup_steps => self.warmup.at(step),
            LrSchedule::Cosine => anneal(
                highest,
                0.0,
                (step - 1 - warmup_steps) as f64,
                (self.total_steps - warmup_steps) as f64,
            ),
        }
    }
}

/// Cosine interpolation between two rates, after `done` of `length` steps.
fn anneal(from: f64, to: f64, done: f64, length: f64) -> f64 {
    let part = if length > 0.0 { done / length } else { 0.0 };
    to + (from - to) / 2.0 * (1.0 + (PI * part).cos())
}

/// The one-cycle rate of `step`, counted from 0 as in PyTorch.
fn one_cycle(highest: f64, pct_start: f64, step: usize, total: usize) -> f64 {
    let (step, first) = (step as f64, highest / FIRST);
    let (top, end) = (pct_start * total as f64 - 1.0, total as f64 - 1.0);
    if step <= top && top > 0.0 {
        return anneal(first, highest, step, top);
    }
    anneal(highest, first / LAST, step - top, end - top)
}

scheduler!(ScheduledLr, "epoch_steps", |lr| lr.epoch_steps);

#[cfg(test)]
mod tests {
    use super::*;
    use burn::lr_scheduler::LrScheduler;

    fn rates(schedule: &str, total: usize) -> Vec<f64> {
        let warmup = WarmupLr::new(0.4, 0.4, 0);
        let mut lr = ScheduledLr::new(schedule.parse().expect("a schedule"), warmup, total, Some(total));
        (0..total).map(|_| lr.step()).collect()
    }

    fn assert_rates(seen: &[f64], wanted: &[f64]) {
        assert_eq!(seen.len(), wanted.len());
        for (seen, wanted) in seen.iter().zip(wanted) {
            assert!((seen - wanted).abs() < 1e-12, "{seen} against {wanted}");
        }
    }

    /// Reference values from torch 2's `OneCycleLR(optimizer, 0.4, total_steps=…, pct_start=…, cycle_momentum=False)`.
    #[test]
    fn one_cycle_equals_pytorchs() {
        let ten = [
            0.016000000000000014,
            0.20800000000000002,
            0.4,
            0.38019385280538953,
            0.3246982615799052,
            0.24450480877451572,
            0.1554967912254843,
            0.0753033384200948,
            0.019807747194610516,
            1.6e-06,
        ];
        assert_rates(&rates("one-cycle", 10), &ten);
        let seven = [
            0.016000000000000014,
            0.38877671095500926,
            0.3246982615799052,
            0.22239360564908073,
            0.11322439928347969,
            0.030656637533702562,
            1.6e-06,
        ];
        assert_rates(&rates("one-cycle:0.2", 7), &seven);
    }

    /// Reference values from torch 2's `CosineAnnealingLR(optimizer, 10)` with a rate of 0.4.
    #[test]
    fn cosine_equals_pytorchs() {
        let wanted = [
            0.4,
            0.39021130325903075,
            0.3618033988749895,
            0.3175570504584947,
            0.26180339887498955,
            0.2,
            0.13819660112501056,
            0.08244294954150541,
            0.03819660112501054,
            0.009788696740969296,
        ];
        assert_rates(&rates("cosine", 10), &wanted);
    }

    #[test]
    fn cosine_begins_where_the_warm_up_ends() {
        let lr = ScheduledLr::new(LrSchedule::Cosine, WarmupLr::new(0.1, 0.5, 4), 24, Some(12));
        assert_rates(&[lr.at(1), lr.at(4), lr.at(5), lr.at(15)], &[0.2, 0.5, 0.5, 0.25]);
        assert!(lr.at(24) > 0.0 && lr.at(24) < 0.01);
    }

    /// Reference values from torch 2.15's `SequentialLR` of `LinearLR(optimizer, start_factor=0.25, total_iters=3)` and
    /// `CosineAnnealingLR(optimizer, 7)` with a rate of 0.4 and `milestones=[3]`.
    #[test]
    fn a_linear_warm_up_before_a_cosine_equals_pytorchs() {
        let lr = ScheduledLr::new(LrSchedule::Cosine, WarmupLr::linear(0.25, 0.4, 3), 10, Some(10));
        let wanted = [
            0.1,
            0.2,
            0.30000000000000004,
            0.4,
            0.38019377358048384,
            0.32469796037174675,
            0.2445041867912629,
            0.15549581320873715,
            0.07530203962825331,
            0.019806226419516192,
        ];
        assert_rates(&(1..=10).map(|step| lr.at(step)).collect::<Vec<_>>(), &wanted);
    }

    #[test]
    fn the_shortest_runs_have_rates_too() {
        for schedule in ["constant", "one-cycle", "one-cycle:0", "one-cycle:1", "cosine"] {
            for total in 1..12 {
                let all = rates(schedule, total);
                assert!(all.iter().all(|lr| (0.0..=0.4 + 1e-12).contains(lr)), "{schedule} {total}: {all:?}");
            }
        }
    }

    #[test]
    fn a_record_carries_the_position_to_another_world_size() {
        let schedule =
            |epoch| ScheduledLr::new(LrSchedule::Cosine, WarmupLr::new(1.0, 1.0, 0), 2 * epoch, Some(epoch));
        let mut two = schedule(100);
        (0..50).for_each(|_| _ = two.step());
        let (mut again, mut four) = (schedule(100), schedule(50));
        again.load_record(two.to_record());
        four.load_record(two.to_record());
        assert_eq!(two.step(), again.step());
        assert_eq!(four.step(), four.at(26));
    }

    #[test]
    fn schedules_are_named_as_documented() {
        for name in ["constant", "one-cycle:0.25", "cosine"] {
            assert_eq!(name.parse::<LrSchedule>().expect(name).to_string(), name);
        }
        assert_eq!("one-cycle".parse(), Ok(LrSchedule::OneCycle { pct_start: 0.3 }));
        for bad in ["", "linear", "cosine:2", "one-cycle:", "one-cycle:1.5", "one-cycle:NaN"] {
            assert!(bad.parse::<LrSchedule>().is_err(), "{bad}");
        }
    }
}
