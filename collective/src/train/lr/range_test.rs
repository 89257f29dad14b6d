//! Learning-rate range test: exponentially growing rates, the smoothed loss, and a suggestion.
//!
//! Smith 2015, "Cyclical Learning Rates for Training Neural Networks", arXiv 1506.01186, section 3.3. Smoothing, the
//! end at divergence and the suggestion are those of fastai's `lr_find`.

/// Factor of the exponential average of losses, fastai's.
const SMOOTHING: f64 = 0.98;
/// The test ends when the smoothed loss exceeds its minimum by this factor, fastai's.
const DIVERGED: f64 = 4.0;

/// Learning rates of a range test: `first` at step 1, then growing by a constant factor to `last` at step `steps`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RangeTestLr {
    /// Rate of step 1.
    pub first: f64,
    /// Rate of step `steps` and later ones.
    pub last: f64,
    /// Number of optimizer steps.
    pub steps: usize,
}

impl RangeTestLr {
    /// The rate of optimizer step `step`, counted from 1.
    pub fn at(&self, step: usize) -> f64 {
        let last = self.steps.saturating_sub(1).max(1);
        let done = step.saturating_sub(1).min(last) as f64;
        self.first * (self.last / self.first).powf(done / last as f64)
    }
}

/// One step of a range test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RangeTestPoint {
    /// Learning rate.
    pub lr: f64,
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Exponential average of the losses so far, with bias correction.
    pub smoothed: f64,
}

/// Losses of a range test.
#[derive(Clone, Debug, Default)]
pub struct RangeTestCurve {
    points: Vec<RangeTestPoint>,
    average: f64,
    diverged: bool,
}

impl RangeTestCurve {
    /// Adds the loss of a step. A loss that is not finite ends the test and is not recorded.
    pub fn push(&mut self, lr: f64, loss: f64) {
        if !loss.is_finite() {
            self.diverged = true;
            return;
        }
        self.average = SMOOTHING * self.average + (1.0 - SMOOTHING) * loss;
        let smoothed = self.average / (1.0 - SMOOTHING.powi(self.points.len() as i32 + 1));
        let lowest = self.points.iter().map(|point| point.smoothed).fold(smoothed, f64::min);
        // Also for negative losses; `smoothed > DIVERGED * lowest` for positive ones.
        self.diverged |= smoothed - lowest > (DIVERGED - 1.0) * lowest.abs();
        self.points.push(RangeTestPoint { lr, loss, smoothed });
    }

    /// The recorded steps, in their order.
    pub fn points(&self) -> &[RangeTestPoint] {
        &self.points
    }

    /// Whether the loss was not finite, or the smoothed loss exceeded four times its minimum.
    pub fn diverged(&self) -> bool {
        self.diverged
    }

    /// The suggested rate: the middle of the longest fall of the smoothed loss, fastai's `valley`.
    ///
    /// The longest fall is the longest strictly decreasing subsequence. `None` if the loss does not fall by more than
    /// the noise of single steps.
    pub fn valley(&self) -> Option<f64> {
        if !self.falls() {
            return None;
        }
        let losses: Vec<f64> = self.points.iter().map(|point| point.smoothed).collect();
        // Length of the longest decreasing subsequence that ends at each point.
        let mut lengths = vec![1_usize; losses.len()];
        for end in 0..losses.len() {
            let before = (0..end).filter(|start| losses[*start] > losses[end]);
            lengths[end] = before.map(|start| lengths[start] + 1).max().unwrap_or(1);
        }
        let longest = lengths.iter().copied().max()?;
        let end = lengths.iter().position(|length| *length == longest)?;
        let third = (longest as f64 / 3.0) as usize;
        let index = (end + 1 - longest.min(end + 1)) + third + third / 2;
        self.points.get(index).map(|point| point.lr)
    }

    /// Whether the lowest smoothed loss is below the mean of the first tenth of the losses by more than the standard
    /// deviation of a loss, which is estimated from the differences of successive losses.
    fn falls(&self) -> bool {
        let losses: Vec<f64> = self.points.iter().map(|point| point.loss).collect();
        let lowest = self.points.iter().map(|point| point.smoothed).fold(f64::INFINITY, f64::min);
        let before = self.points.iter().take_while(|point| point.smoothed > lowest).count();
        let first = &losses[..losses.len().div_ceil(10)];
        let mean = first.iter().sum::<f64>() / first.len().max(1) as f64;
        let squares = losses[..before].windows(2).map(|pair| (pair[1] - pair[0]).powi(2) / 2.0);
        let noise = (squares.sum::<f64>() / before.saturating_sub(1).max(1) as f64).sqrt();
        before > 1 && mean - lowest > noise
    }

    /// The rate at which the smoothed loss is lowest, divided by ten: an upper bound for the rate, fastai's `minimum`.
    ///
    /// `None` without points.
    pub fn minimum_over_ten(&self) -> Option<f64> {
        let lowest = self.points.iter().min_by(|a, b| a.smoothed.total_cmp(&b.smoothed))?;
        Some(lowest.lr / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(losses: impl IntoIterator<Item = f64>) -> RangeTestCurve {
        let mut curve = RangeTestCurve::default();
        let rates = RangeTestLr { first: 1e-6, last: 1.0, steps: 61 };
        for (step, loss) in (1..).zip(losses) {
            curve.push(rates.at(step), loss);
        }
        curve
    }

    #[test]
    fn rates_grow_by_a_constant_factor() {
        let rates = RangeTestLr { first: 1e-4, last: 1.0, steps: 5 };
        let seen: Vec<f64> = (1..=7).map(|step| rates.at(step)).collect();
        for (seen, wanted) in seen.iter().zip([1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1.0, 1.0]) {
            assert!((seen / wanted - 1.0).abs() < 1e-12, "{seen} {wanted}");
        }
        assert_eq!(RangeTestLr { first: 0.5, last: 2.0, steps: 1 }.at(1), 0.5);
    }

    #[test]
    fn the_first_smoothed_loss_is_the_loss() {
        let curve = curve([3.0, 3.0, 3.0]);
        assert!(curve.points().iter().all(|point| (point.smoothed - 3.0).abs() < 1e-12));
        assert!(!curve.diverged() && curve.valley().is_none());
    }

    #[test]
    fn noise_is_not_a_fall() {
        let noise = |step: usize| 2.0 + 0.2 * (((step * 7919) % 101) as f64 / 50.0 - 1.0);
        assert_eq!(curve((0..61).map(noise)).valley(), None);
        assert_eq!(curve((0..61).map(|step| noise(step) + 0.01 * step as f64)).valley(), None);
        assert!(curve((0..61).map(|step| noise(step) - 0.02 * step as f64)).valley().is_some());
    }

    #[test]
    fn a_loss_that_explodes_ends_the_test() {
        assert!(curve([1.0, 1.0, 1.0, 900.0]).diverged());
        assert!(!curve([-1.0, -1.1, -1.0]).diverged() && curve([-1.0, 900.0]).diverged());
        let curve = curve([1.0, f64::NAN]);
        assert!(curve.diverged());
        assert_eq!(curve.points().len(), 1);
    }

    #[test]
    fn the_valley_is_within_the_fall_and_below_the_minimum() {
        // Flat to 1e-4, falling to 1e-1, rising afterwards.
        let loss = |step: usize| match step {
            0..20 => 2.0 + 0.01 * (step % 2) as f64,
            20..50 => 2.0 - 0.05 * (step - 20) as f64,
            _ => 0.5 + 0.3 * (step - 50) as f64,
        };
        let curve = curve((0..61).map(loss));
        let (valley, minimum) =
            (curve.valley().expect("it falls"), curve.minimum_over_ten().expect("points"));
        assert!((1e-4..0.1).contains(&valley), "{valley}");
        assert!(minimum < 0.1 && minimum > 1e-3, "{minimum}");
        assert_eq!(RangeTestCurve::default().valley(), None);
        assert_eq!(RangeTestCurve::default().minimum_over_ten(), None);
    }
}
