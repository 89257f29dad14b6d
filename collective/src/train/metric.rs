//! Metrics that are exact over all ranks.
//!
//! The output of a step is reduced to sums over its samples, which add up over ranks and batches of any size.
//! Padding adds nothing.

mod classification;

pub use classification::{AccuracyTotals, Classification, GlobalAccuracy};

use crate::{Error, Result};
use burn::tensor::{ExecutionError, Tensor};
use burn::train::metric::{Adaptor, LossInput};
use burn::train::{ItemLazy, RegressionOutput};
use serde::{Deserialize, Deserializer, Serialize};

/// Name, unit and direction of a metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricInfo {
    /// Name for consoles, tables and charts, such as `mae`.
    pub name: String,
    /// Unit of the values, such as `°C`; empty if they have none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// Whether values are fractions from 0 to 1 that are shown in percent.
    pub percent: bool,
    /// Whether a higher value is better.
    pub higher_is_better: bool,
}

impl MetricInfo {
    /// The loss.
    pub fn loss() -> Self {
        Self::new("loss")
    }

    /// The fraction of correct answers.
    pub fn accuracy() -> Self {
        Self::new("accuracy").percent().higher_is_better()
    }

    /// A metric of which a lower value is better, such as an error.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), unit: String::new(), percent: false, higher_is_better: false }
    }

    burn_ddp_comm::setters! {
        /// Sets the unit of the values.
        unit(unit: impl Into<String>) => unit = unit.into();
    }

    /// Shows values, which are fractions from 0 to 1, in percent.
    pub fn percent(self) -> Self {
        Self { percent: true, ..self }
    }

    /// Declares that a higher value is better.
    pub fn higher_is_better(self) -> Self {
        Self { higher_is_better: true, ..self }
    }

    /// Formats a value: `98.11 %`, `0.0647` or `0.0647 °C`.
    pub fn text(&self, value: f64) -> String {
        match &*self.unit {
            _ if self.percent => format!("{:.2} %", 100.0 * value),
            "" => format!("{value:.4}"),
            unit => format!("{value:.4} {unit}"),
        }
    }
}

/// Value of a metric over the samples of all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricValue {
    /// Name, unit and direction.
    pub metric: MetricInfo,
    /// Value; a fraction from 0 to 1 if the metric is shown in percent.
    #[serde(deserialize_with = "number_or_nan")]
    pub value: f64,
}

/// Reads a number from JSON, which has null in place of NaN and infinities.
pub(crate) fn number_or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// [`number_or_nan`] for several numbers.
pub(crate) fn numbers_or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    let numbers: Vec<Option<f64>> = Deserialize::deserialize(from)?;
    Ok(numbers.into_iter().map(|number| number.unwrap_or(f64::NAN)).collect())
}

impl MetricValue {
    /// Formats name and value: `mae 0.0647`.
    pub fn text(&self) -> String {
        format!("{} {}", self.metric.name, self.metric.text(self.value))
    }
}

/// A step's output that is summed over ranks.
pub trait StepOutput: ItemLazy {
    /// Sums over the samples of this output, of which the first is the loss.
    ///
    /// Shape `[n]`: one per metric of [`metrics`](Self::metrics).
    fn totals(&self) -> Tensor<1>;
    /// The metrics, whose values are the totals divided by the number of samples. The first is the loss.
    fn metrics() -> Vec<MetricInfo> {
        vec![MetricInfo::loss()]
    }
    /// Creates the output that metrics receive for `samples` samples with these totals.
    fn from_totals(totals: &[f64], samples: usize) -> Self;
}

/// Adds totals to the sum `to`, which may still be empty.
pub(crate) fn add_totals(to: &mut Vec<f64>, totals: &[f64]) {
    to.resize(totals.len(), 0.0);
    to.iter_mut().zip(totals).for_each(|(to, total)| *to += total);
}

/// The means of an output's metrics over `samples` samples with these totals.
pub(crate) fn means<O: StepOutput>(totals: &[f64], samples: usize) -> Vec<MetricValue> {
    let mean =
        |(metric, total): (MetricInfo, &f64)| MetricValue { metric, value: total / samples.max(1) as f64 };
    O::metrics().into_iter().zip(totals).map(mean).collect()
}

/// Verifies that an output has one total per metric.
pub(crate) fn check_totals<O: StepOutput>(totals: &[f64]) -> Result<()> {
    let (totals, metrics) = (totals.len(), O::metrics().len());
    if totals == metrics {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "the model's output has {totals} total(s), but StepOutput::metrics lists {metrics}; list one metric per total"
    )))
}

/// Output of a step that has only a loss, which is the mean over its samples.
#[derive(Clone, Debug)]
pub struct MeanLoss {
    /// `[loss summed over samples]`
    total: Tensor<1>,
    samples: usize,
}

impl MeanLoss {
    /// Creates the output from the mean loss `[1]` over `samples` samples.
    pub fn new(loss: Tensor<1>, samples: usize) -> Self {
        Self { total: loss.inner().mul_scalar(samples as f32), samples }
    }
}

impl StepOutput for MeanLoss {
    fn totals(&self) -> Tensor<1> {
        self.total.clone()
    }

    fn from_totals(totals: &[f64], samples: usize) -> Self {
        Self { total: Tensor::from_data(totals, &burn::tensor::Device::flex()), samples }
    }
}

impl ItemLazy for MeanLoss {
    fn sync(self) -> Result<Self, ExecutionError> {
        Ok(self)
    }
}

impl Adaptor<LossInput> for MeanLoss {
    fn adapt(&self) -> LossInput {
        LossInput::new(self.total.clone().div_scalar(self.samples.max(1) as f32))
    }
}

// ANCHOR: regression
/// The output of burn-train's regression step, whose loss is the mean over the batch.
///
/// An output that represents all ranks has only the loss, which is all that burn-train's metrics read.
impl StepOutput for RegressionOutput {
    fn totals(&self) -> Tensor<1> {
        let [samples, _targets] = self.output.dims();
        self.loss.clone().inner().mul_scalar(samples as f32)
    }

    fn from_totals(totals: &[f64], samples: usize) -> Self {
        let device = burn::tensor::Device::flex();
        let mean = totals.first().copied().unwrap_or(f64::NAN) / samples.max(1) as f64;
        let none = Tensor::empty([0, 0], &device);
        Self { loss: Tensor::from_data([mean], &device), output: none.clone(), targets: none }
    }
}
// ANCHOR_END: regression

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_without_a_metric_are_refused() {
        assert!(check_totals::<Classification>(&[1.0, 2.0]).is_ok());
        let error = check_totals::<RegressionOutput>(&[1.0, 2.0]).expect_err("two totals").to_string();
        assert!(error.contains("2 total(s), but StepOutput::metrics lists 1"), "{error}");
    }
}
