//! Linear learning-rate warm-up.

/// Linear learning-rate warm-up from `base` to `target`, constant afterwards.
///
/// It is a Burn learning-rate scheduler whose record contains the position.
#[derive(Clone, Copy, Debug)]
pub struct WarmupLr {
    /// Initial rate of the warm-up.
    pub base: f64,
    /// Rate after the warm-up.
    pub target: f64,
    /// Number of optimizer steps of the warm-up.
    pub warmup_steps: usize,
    /// Steps at the rate `base` before the first rise.
    delay: usize,
    step: usize,
}

impl WarmupLr {
    /// PyTorch's default `start_factor` of `LinearLR`.
    pub const START_FACTOR: f64 = 1.0 / 3.0;

    /// The warm-up of Goyal et al.
    ///
    /// Step 1 is one increment above `base`, and step `warmup_steps` has the rate `target`. Without warm-up steps the
    /// rate is always `target`.
    pub fn new(base: f64, target: f64, warmup_steps: usize) -> Self {
        Self { base, target, warmup_steps, delay: 0, step: 0 }
    }

    /// PyTorch's `LinearLR(start_factor=start_factor, total_iters=warmup_steps)`.
    ///
    /// Step 1 has the rate `start_factor * target`, and step `warmup_steps + 1` the rate `target`.
    pub fn linear(start_factor: f64, target: f64, warmup_steps: usize) -> Self {
        Self { delay: 1, ..Self::new(start_factor * target, target, warmup_steps) }
    }

    /// The first step with the rate `target`, counted from 1.
    pub fn reached_at(&self) -> usize {
        (self.warmup_steps + self.delay).max(1)
    }

    /// The rate of optimizer step `step`, counted from 1.
    pub fn at(&self, step: usize) -> f64 {
        if self.warmup_steps == 0 || step >= self.reached_at() {
            return self.target;
        }
        let done = step.saturating_sub(self.delay) as f64;
        self.base + (self.target - self.base) * done / self.warmup_steps as f64
    }
}

scheduler!(WarmupLr, "warmup_steps", |lr| Some(lr.warmup_steps));

#[cfg(test)]
mod tests {
    use super::*;
    use burn::lr_scheduler::LrScheduler;

    #[test]
    fn warm_up_is_linear_and_then_constant() {
        let mut lr = WarmupLr::new(0.1, 0.5, 4);
        let seen: Vec<f64> = (0..6).map(|_| lr.step()).collect();
        for (seen, wanted) in seen.iter().zip([0.2, 0.3, 0.4, 0.5, 0.5, 0.5]) {
            assert!((seen - wanted).abs() < 1e-12, "{seen} against {wanted}");
        }
        assert_eq!(WarmupLr::new(0.1, 0.5, 0).step(), 0.5);
    }

    /// Reference values from torch 2.15's `LinearLR(optimizer, start_factor=…, total_iters=4)` with a rate of 0.4;
    /// without `start_factor` in the second line.
    #[test]
    fn start_factor_equals_pytorchs() {
        for (factor, wanted) in [
            (
                0.1,
                [
                    0.04000000000000001,
                    0.13000000000000003,
                    0.22000000000000006,
                    0.3100000000000001,
                    0.40000000000000013,
                    0.40000000000000013,
                ],
            ),
            (
                WarmupLr::START_FACTOR,
                [0.13333333333333333, 0.2, 0.2666666666666667, 0.33333333333333337, 0.4, 0.4],
            ),
            (1.0, [0.4; 6]),
        ] {
            let mut lr = WarmupLr::linear(factor, 0.4, 4);
            for (step, wanted) in (1..).zip(wanted) {
                let seen = lr.step();
                assert!((seen - wanted).abs() < 1e-12, "step {step}: {seen} against {wanted}");
            }
            assert_eq!((lr.reached_at(), lr.at(4) < 0.4, lr.at(5)), (5, factor < 1.0, 0.4));
        }
        assert_eq!(WarmupLr::linear(0.1, 0.4, 0).step(), 0.4);
    }

    #[test]
    fn a_record_carries_the_position() {
        let mut lr = WarmupLr::new(0.0, 1.0, 10);
        (0..3).for_each(|_| _ = lr.step());
        let mut other = WarmupLr::new(0.0, 1.0, 10);
        other.load_record(lr.to_record());
        assert_eq!(lr.step(), other.step());
        // At twice the world size, a warm-up has half as many steps.
        let mut half = WarmupLr::new(0.0, 1.0, 5);
        half.load_record(lr.to_record());
        assert_eq!(half.step(), 0.6);
    }
}
