//! Axes: round numbers over a range of values, and how they are written.

/// A range of values with round numbers in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    pub from: f64,
    pub to: f64,
    /// Distance of the marks.
    step: f64,
}

impl Scale {
    /// Over `values`, with about `marks` marks, and 0 if it is asked for.
    pub fn over(values: impl Iterator<Item = f64>, marks: usize, from_zero: bool) -> Self {
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
        let step = round_step((to - from) / marks.max(1) as f64);
        Self { from: (from / step).floor() * step, to: (to / step).ceil() * step, step }
    }

    /// Exactly from the first to the last of `values`, for the axis along which time goes.
    pub fn along(values: impl Iterator<Item = f64>, marks: usize) -> Self {
        let (from, to) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)));
        match from < to {
            true => Self { from, to, step: round_step((to - from) / marks.max(1) as f64).max(0.0) },
            false => Self::over([from].into_iter().filter(|x| x.is_finite()), marks, false),
        }
    }

    /// Where a value lies: 0 at the lower end, 1 at the upper.
    pub fn place(&self, value: f64) -> f64 {
        (value - self.from) / (self.to - self.from)
    }

    /// The marks with what is written at them.
    pub fn marks(&self) -> Vec<(f64, String)> {
        let first = (self.from / self.step - 1e-9).ceil() as i64;
        let last = (self.to / self.step + 1e-9).floor() as i64;
        // Not more than fit, whatever the numbers.
        let marks = (first..=last).take(40).map(|number| number as f64 * self.step);
        marks.map(|value| (value, self.write(value))).collect()
    }

    /// As few digits as tell the marks apart.
    fn write(&self, value: f64) -> String {
        let decimals = (-self.step.log10().floor()).max(0.0) as usize;
        let largest = self.from.abs().max(self.to.abs());
        if value == 0.0 {
            "0".into()
        } else if decimals > 5 || largest >= 1e9 {
            format!("{value:.1e}").replace(".0e", "e")
        } else if largest >= 1e6 && self.step >= 1e5 {
            format!("{:.1}M", value / 1e6).replace(".0M", "M")
        } else if largest >= 1e4 && self.step >= 1e2 {
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
        let loss = Scale::over([0.13, 2.31].into_iter(), 5, true);
        assert_eq!(written(&loss), ["0", "0.5", "1.0", "1.5", "2.0", "2.5"]);
        assert_eq!(loss.place(1.25), 0.5);
        let accuracy = Scale::over([90.1, 94.95].into_iter(), 5, false);
        assert_eq!(written(&accuracy), ["90", "91", "92", "93", "94", "95"]);
        let rate = Scale::over([1e-7, 3e-7].into_iter(), 3, true);
        assert_eq!(written(&rate), ["0", "1e-7", "2e-7", "3e-7"]);
        let steps = Scale::along([1.0, 46_900.0].into_iter(), 5);
        assert_eq!(written(&steps), ["10k", "20k", "30k", "40k"]);
        assert_eq!((steps.place(1.0), steps.place(46_900.0)), (0.0, 1.0));
    }

    #[test]
    fn one_value_or_none_has_a_scale_too() {
        for scale in [
            Scale::over([].into_iter(), 5, false),
            Scale::over([97.5].into_iter(), 5, false),
            Scale::over([0.0].into_iter(), 5, true),
            Scale::along([].into_iter(), 5),
            Scale::along([7.0].into_iter(), 5),
        ] {
            assert!(scale.from < scale.to && scale.marks().len() >= 2, "{scale:?} {:?}", scale.marks());
        }
        assert!((Scale::along([7.0].into_iter(), 5).place(7.0) - 0.5).abs() < 0.2);
    }
}
