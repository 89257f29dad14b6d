//! `--histograms`: distributions of parameters and averaged gradients.
//!
//! They have TensorFlow's exponential buckets (tensorflow/core/lib/histogram/histogram.cc), whose widths grow with the
//! distance from 0, so that small gradients are resolved.

use super::EventLog;
use crate::run::tensor_io;
use burn::module::{ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::train::LearnerModel;
use collective::{
    ProcessGroup,
    strategy::{Callback, Join},
};
use std::sync::Arc;

/// Upper limit of the first bucket above 0.
const SMALLEST: f64 = 1e-12;
/// Bound of the finite bucket limits.
const LARGEST: f64 = 1e20;
/// Ratio of consecutive limits.
const GROWTH: f64 = 1.1;

/// Histogram of finite values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    pub min: f64,
    pub max: f64,
    pub count: u64,
    pub sum: f64,
    pub sum_squares: f64,
    /// Upper limits of the buckets. The first and the last bucket are not empty.
    pub limits: Vec<f64>,
    /// Number of values in each bucket.
    pub counts: Vec<u64>,
}

impl Histogram {
    /// Counts the finite values; returns `None` if there are none.
    pub fn from_values(values: &[f32]) -> Option<Self> {
        let limits = limits();
        let mut counts = vec![0_u64; limits.len()];
        let mut all = Self { min: f64::INFINITY, max: f64::NEG_INFINITY, ..Self::default() };
        for value in values.iter().map(|value| f64::from(*value)).filter(|value| value.is_finite()) {
            (all.min, all.max) = (all.min.min(value), all.max.max(value));
            all.count += 1;
            all.sum += value;
            all.sum_squares += value * value;
            // The last bucket includes `f64::MAX`.
            let bucket = limits.partition_point(|limit| *limit <= value).min(counts.len() - 1);
            counts[bucket] += 1;
        }
        let first = counts.iter().position(|count| *count > 0)?;
        let last = counts.iter().rposition(|count| *count > 0)?;
        all.limits = limits[first..=last].to_vec();
        all.counts = counts[first..=last].to_vec();
        Some(all)
    }
}

/// Returns the upper limits of all buckets in ascending order.
fn limits() -> Vec<f64> {
    let above = std::iter::successors(Some(SMALLEST), |limit| Some(limit * GROWTH));
    let above: Vec<f64> = above.take_while(|limit| *limit < LARGEST).chain([f64::MAX]).collect();
    let below = above.iter().rev().map(|limit| -limit);
    below.chain([0.0]).chain(above.iter().copied()).collect()
}

/// Callback that writes histograms of every parameter and its gradient.
///
/// Parameters and averaged gradients are equal on all ranks; rank 0 writes them.
pub struct GradientHistograms {
    every: usize,
    /// Event log on rank 0, `None` on other ranks.
    log: Option<Arc<EventLog>>,
}

impl GradientHistograms {
    /// Creates a callback for step 1 and every multiple of `every`.
    pub fn new(every: usize, log: Option<Arc<EventLog>>) -> Self {
        Self { every, log }
    }
}

impl<M: LearnerModel> Callback<M> for GradientHistograms {
    fn on_gradients(&mut self, step: usize, model: &M, grads: &GradientsParams) -> Result<(), String> {
        let Some(log) = &self.log else { return Ok(()) };
        if step != 1 && !step.is_multiple_of(self.every) {
            return Ok(());
        }
        let mut write = Write { log, step, grads, path: Vec::new(), failure: None };
        model.visit(&mut write);
        write.failure.map_or(Ok(()), Err)
    }

    fn distributed(&mut self) -> Option<&mut dyn Join> {
        Some(self)
    }
}

/// All ranks have the same values.
impl Join for GradientHistograms {
    fn join_over(&mut self, _: &ProcessGroup) -> collective::Result<()> {
        Ok(())
    }
}

struct Write<'a> {
    log: &'a EventLog,
    step: usize,
    grads: &'a GradientsParams,
    path: Vec<String>,
    failure: Option<String>,
}

impl Write<'_> {
    fn write<const D: usize>(&mut self, kind: &str, values: Tensor<D>) {
        let name = format!("{kind}/{}", self.path.join("."));
        match tensor_io::values::<f32, D, _>(values) {
            Ok(values) => {
                if let Some(values) = Histogram::from_values(&values) {
                    self.log.histogram(name, self.step, values);
                }
            }
            Err(reason) => self.failure = Some(format!("--histograms: cannot read {name}: {reason}")),
        }
    }
}

impl ModuleVisitor for Write<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.write("parameters", param.val().inner());
        if let Some(grad) = self.grads.get::<D>(param.id) {
            self.write("gradients", grad);
        }
    }

    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finite_value_is_in_the_bucket_around_it() {
        let values = [0.0, -0.5, 0.25, 0.25, 3.0, 1e-30, f32::MAX, f32::MIN, f32::NAN, f32::INFINITY];
        let all = Histogram::from_values(&values).expect("finite values");
        assert_eq!((all.count, all.min, all.max), (8, f64::from(f32::MIN), f64::from(f32::MAX)));
        assert_eq!(all.counts.iter().sum::<u64>(), 8);
        assert!(all.limits.windows(2).all(|pair| pair[0] < pair[1]));
        for value in [-0.5, 0.25, 3.0] {
            let bucket = all.limits.iter().position(|limit| value < *limit).expect("a bucket");
            let (from, to) = (all.limits[bucket - 1], all.limits[bucket]);
            assert!(all.counts[bucket] > 0 && from <= value, "{value} is in {from}..{to}");
            assert!((to - from).abs() <= 0.11 * f64::abs(value), "{from}..{to} is narrow");
        }
    }

    #[test]
    fn sums_are_over_all_and_ends_are_not_empty() {
        let all = Histogram::from_values(&[1.0, 2.0, -4.0]).expect("values");
        assert_eq!((all.sum, all.sum_squares), (-1.0, 21.0));
        assert_eq!((all.counts.first(), all.counts.last()), (Some(&1), Some(&1)));
        assert_eq!(Histogram::from_values(&[f32::NAN]), None);
        assert_eq!(Histogram::from_values(&[]), None);
    }
}
