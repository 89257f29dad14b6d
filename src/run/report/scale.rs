//! Axes: ranges with round tick values and their labels.

/// Range and type of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Linear, including 0.
    FromZero,
    /// Linear, over the range of the values.
    Around,
    /// Linear, over the range of the values but within 0 to 100.
    Percent,
    /// Logarithmic if the values are positive and span a power of ten, otherwise linear from 0.
    Logarithmic,
}

/// Range of an axis with round tick values.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    pub from: f64,
    pub to: f64,
    /// Distance of the ticks; `None` on a logarithmic axis.
    step: Option<f64>,
}

impl Scale {
    /// Creates a scale over `values` with about `marks` ticks.
    pub fn over(values: impl Iterator<Item = f64>, marks: usize, axis: Axis) -> Self {
        let (mut from, mut to) = range(values);
        if axis == Axis::Logarithmic && from > 0.0 && to / from >= 10.0 {
            // Rounded outwards to 1, 2 or 5 times a power of ten.
            return Self { from: 1.0 / round_step(1.0 / from), to: round_step(to), step: None };
        }
        let from_zero = matches!(axis, Axis::FromZero | Axis::Logarithmic);
        if from_zero {
            (from, to) = (from.min(0.0), to.max(0.0));
        }
        if from > to {
            (from, to) = (0.0, 1.0);
        }
        if from == to {
            // A single value gets margins on both sides.
            let room = if from == 0.0 { 1.0 } else { from.abs() * 0.1 };
            (from, to) = (if from_zero && from == 0.0 { 0.0 } else { from - room }, to + room);
        }
        if axis == Axis::Percent {
            (from, to) = (from.max(0.0), to.min(100.0));
        }
        let step = round_step((to - from) / marks.max(1) as f64);
        Self { from: (from / step).floor() * step, to: (to / step).ceil() * step, step: Some(step) }
    }

    /// Creates a scale from exactly the smallest to the largest value, for an x-axis.
    pub fn along(values: impl Iterator<Item = f64>, marks: usize) -> Self {
        let (from, to) = range(values);
        match from < to {
            true => Self { from, to, step: Some(round_step((to - from) / marks.max(1) as f64)) },
            false => Self::over([from].into_iter().filter(|x| x.is_finite()), marks, Axis::Around),
        }
    }

    /// Returns the position of a value on the axis, clamped to 0..=1.
    pub fn place(&self, value: f64) -> f64 {
        let place = match self.step {
            Some(_) => (value - self.from) / (self.to - self.from),
            None => (value.max(0.0) / self.from).ln() / (self.to / self.from).ln(),
        };
        place.clamp(0.0, 1.0)
    }

    /// Returns the ticks with their labels.
    pub fn marks(&self) -> Vec<(f64, String)> {
        let Some(step) = self.step else { return self.powers() };
        let first = (self.from / step - 1e-9).ceil() as i64;
        let last = (self.to / step + 1e-9).floor() as i64;
        // Bounded in case of extreme values.
        let marks = (first..=last).take(40).map(|number| number as f64 * step);
        marks.map(|value| (value, self.write(value, step))).collect()
    }

    /// Returns logarithmic ticks: 1, 2 and 5 times powers of ten, or powers of ten over a wide range.
    fn powers(&self) -> Vec<(f64, String)> {
        let (first, last) = (self.from.log10().floor() as i32, self.to.log10().ceil() as i32);
        let rounds: &[f64] = if last - first > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all = (first..=last).flat_map(|power| rounds.iter().map(move |round| round * 10_f64.powi(power)));
        let seen = all.filter(|value| (self.from * 0.999..=self.to * 1.001).contains(value));
        seen.map(|value| (value, self.write(value, value))).collect()
    }

    /// Formats a tick with the fewest digits that distinguish ticks at a distance of `step`.
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

/// The smallest and the largest value; the first is larger if there are none.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), value| (from.min(value), to.max(value)))
}

/// Rounds `step` up to 1, 2 or 5 times a power of ten.
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
    fn a_logarithmic_axis_needs_values_that_span_a_power_of_ten() {
        let loss = Scale::over([0.024, 2.31].into_iter(), 5, Axis::Logarithmic);
        assert_eq!(written(&loss), ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5"]);
        assert!((loss.place(0.02 * 250_f64.sqrt()) - 0.5).abs() < 1e-9, "the middle is the geometric mean");
        assert_eq!((loss.place(0.0), loss.place(9.0)), (0.0, 1.0), "values outside the range are clamped");
        let long = Scale::over([1e-6, 3.0].into_iter(), 5, Axis::Logarithmic);
        assert_eq!(written(&long), ["1e-6", "1e-5", "0.0001", "0.001", "0.01", "0.1", "1"]);
        let flat = [0.5, 2.0].into_iter();
        assert_eq!(Scale::over(flat.clone(), 5, Axis::Logarithmic), Scale::over(flat, 5, Axis::FromZero));
    }

    #[test]
    fn one_value_or_none_gives_a_valid_scale() {
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
