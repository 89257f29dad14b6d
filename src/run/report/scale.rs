//! Axes: round numbers over a range of values, and how they are written.

/// Where an axis begins, and how it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    FromZero,
    /// No further than the values do.
    Around,
    /// The same for percentages: never below 0 or above 100.
    Percent,
    /// In powers of ten, if the values are above 0 and span one; or else from 0.
    Logarithmic,
}

/// A range of values with round numbers in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    pub from: f64,
    pub to: f64,
    /// Distance of the marks; `None` on an axis in powers of ten.
    step: Option<f64>,
}

impl Scale {
    /// Over `values`, with about `marks` marks.
    pub fn over(values: impl Iterator<Item = f64> + Clone, marks: usize, axis: Axis) -> Self {
        let from_zero = match axis {
            Axis::FromZero => true,
            Axis::Around | Axis::Percent => false,
            Axis::Logarithmic => {
                let least = values.clone().fold(f64::INFINITY, f64::min);
                let most = values.clone().fold(f64::NEG_INFINITY, f64::max);
                if least > 0.0 && most / least >= 10.0 {
                    // Round numbers around them: the next of 1, 2 and 5.
                    let from = 1.0 / round_step(1.0 / least);
                    return Self { from, to: round_step(most), step: None };
                }
                true
            }
        };
        let start = if from_zero { (0.0, 0.0) } else { (f64::INFINITY, f64::NEG_INFINITY) };
        let (mut from, mut to) = values.fold(start, |(from, to), value| (from.min(value), to.max(value)));
        if from > to {
            (from, to) = (0.0, 1.0);
        }
        if from == to {
            // A single value has room on both sides.
            let room = if from == 0.0 { 1.0 } else { from.abs() * 0.1 };
            (from, to) = (if from_zero && from == 0.0 { 0.0 } else { from - room }, to + room);
        }
        if axis == Axis::Percent {
            (from, to) = (from.max(0.0), to.min(100.0));
        }
        let step = round_step((to - from) / marks.max(1) as f64);
        Self { from: (from / step).floor() * step, to: (to / step).ceil() * step, step: Some(step) }
    }

    /// Exactly from the first to the last of `values`, for the axis along which time goes.
    pub fn along(values: impl Iterator<Item = f64>, marks: usize) -> Self {
        let (from, to) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)));
        match from < to {
            true => Self { from, to, step: Some(round_step((to - from) / marks.max(1) as f64)) },
            false => Self::over([from].into_iter().filter(|x| x.is_finite()), marks, Axis::Around),
        }
    }

    /// Where a value lies: 0 at the lower end or below it, 1 at the upper or above.
    pub fn place(&self, value: f64) -> f64 {
        let place = match self.step {
            Some(_) => (value - self.from) / (self.to - self.from),
            None => (value.max(0.0) / self.from).ln() / (self.to / self.from).ln(),
        };
        place.clamp(0.0, 1.0)
    }

    /// The marks with what is written at them.
    pub fn marks(&self) -> Vec<(f64, String)> {
        let Some(step) = self.step else { return self.powers() };
        let first = (self.from / step - 1e-9).ceil() as i64;
        let last = (self.to / step + 1e-9).floor() as i64;
        // Not more than fit, whatever the numbers.
        let marks = (first..=last).take(40).map(|number| number as f64 * step);
        marks.map(|value| (value, self.write(value, step))).collect()
    }

    /// 1, 2 and 5 times the powers of ten, or the powers alone where there are many.
    fn powers(&self) -> Vec<(f64, String)> {
        let (first, last) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
        let rounds: &[f64] = if last - first > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = (first..=last).flat_map(|power| rounds.iter().map(move |round| round * 10_f64.powi(power)));
        let seen = all.filter(|value| (self.from * 0.999..=self.to * 1.001).contains(value));
        seen.map(|value| (value, self.write(value, value))).collect()
    }

    /// As few digits as tell apart marks at a distance of `step`.
    fn write(&self, value: f64, step: f64) -> String {
        let decimals = (-(step * 1.001).log10().floor()).max(0.0) as usize;
        let largest = self.from.abs().max(self.to.abs());
        if value == 0.0 {
            "0".into()
        } else if decimals > 4 || largest >= 1e9 {
            format!("{value:.1e}").replace(".0e", "e")
        } else if largest >= 1e6 && step >= 1e5 {
            format!("{:.1}M", value / 1e6).replace(".0M", "M")
        } else if largest >= 1e4 && step >= 1e2 {
            format!("{:.1}k", value / 1e3).replace(".0k", "k")
        } else {
            format!("{value:.decimals$}")
        }
    }
}

/// 1, 2 or 5 times a power of ten, not less than `step`.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.max(f64::MIN_POSITIVE).log10().floor());
    let round = [1.0, 2.0, 5.0, 10.0].into_iter().find(|round| round * power >= step * (1.0 - 1e-9));
    round.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(scale: &Scale) -> Vec<String> {
        scale.marks().into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn marks_are_round_and_around_the_values() {
        let loss = Scale::over([0.13, 2.31].into_iter(), 5, Axis::FromZero);
        assert_eq!(written(&loss), ["0", "0.5", "1.0", "1.5", "2.0", "2.5"]);
        assert_eq!(loss.place(1.25), 0.5);
        let accuracy = Scale::over([90.1, 94.95].into_iter(), 5, Axis::Around);
        assert_eq!(written(&accuracy), ["90", "91", "92", "93", "94", "95"]);
        let certain = Scale::over([99.4].into_iter(), 5, Axis::Percent);
        assert_eq!(written(&certain), ["85", "90", "95", "100"]);
        let mixed = Scale::over([0.0, 100.0].into_iter(), 5, Axis::Percent);
        assert_eq!(written(&mixed), ["0", "20", "40", "60", "80", "100"]);
        let rate = Scale::over([1e-7, 3e-7].into_iter(), 3, Axis::FromZero);
        assert_eq!(written(&rate), ["0", "1e-7", "2e-7", "3e-7"]);
        let steps = Scale::along([1.0, 46_900.0].into_iter(), 5);
        assert_eq!(written(&steps), ["10k", "20k", "30k", "40k"]);
        assert_eq!((steps.place(1.0), steps.place(46_900.0)), (0.0, 1.0));
    }

    #[test]
    fn powers_of_ten_are_for_values_that_span_one() {
        let loss = Scale::over([0.024, 2.31].into_iter(), 5, Axis::Logarithmic);
        assert_eq!(written(&loss), ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5"]);
        assert!((loss.place(0.02 * 250_f64.sqrt()) - 0.5).abs() < 1e-9, "half way is the root");
        assert_eq!((loss.place(0.0), loss.place(9.0)), (0.0, 1.0), "what is beyond stays on paper");
        let long = Scale::over([1e-6, 3.0].into_iter(), 5, Axis::Logarithmic);
        assert_eq!(written(&long), ["1e-6", "1e-5", "0.0001", "0.001", "0.01", "0.1", "1"]);
        let flat = [0.5, 2.0].into_iter();
        assert_eq!(Scale::over(flat.clone(), 5, Axis::Logarithmic), Scale::over(flat, 5, Axis::FromZero));
    }

    #[test]
    fn one_value_or_none_has_a_scale_too() {
        for scale in [
            Scale::over([].into_iter(), 5, Axis::Around),
            Scale::over([97.5].into_iter(), 5, Axis::Around),
            Scale::over([0.0].into_iter(), 5, Axis::Percent),
            Scale::over([100.0].into_iter(), 5, Axis::Percent),
            Scale::over([0.0].into_iter(), 5, Axis::FromZero),
            Scale::over([].into_iter(), 5, Axis::Logarithmic),
            Scale::along([].into_iter(), 5),
            Scale::along([7.0].into_iter(), 5),
        ] {
            assert!(scale.from < scale.to && scale.marks().len() >= 2, "{scale:?} {:?}", scale.marks());
        }
        assert!((Scale::along([7.0].into_iter(), 5).place(7.0) - 0.5).abs() < 0.2);
    }
}
