//! Loss and accuracy of a classification.

use super::{MetricInfo, StepOutput};
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::tensor::{ExecutionError, Int, Tensor, TensorReadError};
use burn::train::ItemLazy;
use burn::train::metric::{
    Adaptor, LossInput, Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes,
    NumericEntry, SerializedEntry,
    state::{FormatOptions, NumericMetricState},
};
use kernels::layers;
use std::sync::Arc;

/// Output of a classification step: loss and correct answers.
#[derive(Clone, Debug)]
pub struct Classification {
    /// `[loss summed over samples, correct answers]`
    totals: Tensor<1>,
    samples: usize,
    answers: Option<(Tensor<2>, Tensor<1, Int>)>,
}

impl Classification {
    /// Creates the output from the mean loss `[1]`, logits `[batch, classes]` and targets `[batch]`.
    pub fn new(loss: Tensor<1>, logits: Tensor<2>, targets: Tensor<1, Int>) -> Self {
        let [samples, _classes] = logits.dims();
        let logits = logits.inner();
        let targets = targets.inner();
        let correct = logits.clone().argmax(1).reshape([samples]).equal(targets.clone()).int().sum().float();
        let loss = loss.inner().mul_scalar(samples as f32);
        Self { totals: Tensor::cat(vec![loss, correct], 0), samples, answers: Some((logits, targets)) }
    }

    /// Computes the mean loss `[1]` for backward, and the output, from logits `[batch, classes]` and targets `[batch]`.
    ///
    /// The results are those of `loss.forward` and [`new`](Self::new), with few launches on a GPU
    /// ([`layers::cross_entropy_totals`]).
    pub fn from_logits(
        loss: &CrossEntropyLoss,
        logits: Tensor<2>,
        targets: Tensor<1, Int>,
    ) -> (Tensor<1>, Self) {
        let [samples, _classes] = logits.dims();
        if let Some((mean, totals)) = layers::cross_entropy_totals(loss, &logits, &targets) {
            return (mean, Self { totals, samples, answers: Some((logits.inner(), targets.inner())) });
        }
        let mean = loss.forward(logits.clone(), targets.clone());
        (mean.clone(), Self::new(mean, logits, targets))
    }

    /// [`from_logits`](Self::from_logits) with the cross-entropy, whose targets are smoothed in training.
    ///
    /// A fraction `smoothing` of each target is distributed over all classes, as by PyTorch's `label_smoothing` (Szegedy
    /// et al. 2015, arXiv 1512.00567). Logits on a device without autodiff are those of an evaluation, which has no
    /// smoothing.
    pub fn cross_entropy(smoothing: f64, logits: Tensor<2>, targets: Tensor<1, Int>) -> (Tensor<1>, Self) {
        let smooths = smoothing > 0.0 && logits.device().is_autodiff();
        let loss = CrossEntropyLossConfig::new().with_smoothing(smooths.then_some(smoothing as f32));
        Self::from_logits(&loss.init(&logits.device()), logits, targets)
    }

    /// Logits `[batch, classes]` and targets `[batch]`, without a graph.
    ///
    /// `None` in an output that represents all ranks.
    pub fn answers(&self) -> Option<(Tensor<2>, Tensor<1, Int>)> {
        self.answers.clone()
    }
}

impl StepOutput for Classification {
    fn metrics() -> Vec<MetricInfo> {
        vec![MetricInfo::loss(), MetricInfo::accuracy()]
    }

    fn totals(&self) -> Tensor<1> {
        self.totals.clone()
    }

    fn from_totals(totals: &[f64], samples: usize) -> Self {
        Self { totals: Tensor::from_data(totals, &burn::tensor::Device::flex()), samples, answers: None }
    }
}

impl ItemLazy for Classification {
    fn sync(self) -> Result<Self, ExecutionError> {
        Ok(self)
    }
}

impl Adaptor<LossInput> for Classification {
    fn adapt(&self) -> LossInput {
        LossInput::new(self.totals.clone().slice(0..1).div_scalar(self.samples.max(1) as f32))
    }
}

/// Input of [`GlobalAccuracy`].
pub struct AccuracyTotals {
    correct: Tensor<1>,
    samples: usize,
}

impl Adaptor<AccuracyTotals> for Classification {
    fn adapt(&self) -> AccuracyTotals {
        AccuracyTotals { correct: self.totals.clone().slice(1..2), samples: self.samples }
    }
}

/// Accuracy in percent over all ranks, as a burn-train metric.
#[derive(Clone, Default)]
pub struct GlobalAccuracy {
    state: NumericMetricState,
}

impl GlobalAccuracy {
    fn format(&self) -> FormatOptions {
        FormatOptions::new(self.name()).unit("%").precision(2)
    }
}

impl Metric for GlobalAccuracy {
    type Input = AccuracyTotals;

    fn name(&self) -> MetricName {
        Arc::new("Accuracy".into())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes { unit: Some("%".into()), higher_is_better: true }.into()
    }

    fn update(
        &mut self,
        input: &AccuracyTotals,
        _: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        let correct = input.correct.clone().try_into_scalar::<f64>()?;
        self.state.update(100.0 * correct / input.samples.max(1) as f64, input.samples);
        Ok(self.state.compute_update(self.format()))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(self.state.compute_final(self.format()))
    }

    fn clear(&mut self) {
        self.state.reset();
    }
}

impl Numeric for GlobalAccuracy {
    fn value(&self) -> Option<NumericEntry> {
        Some(self.state.current_value())
    }

    fn running_value(&self) -> Option<NumericEntry> {
        Some(self.state.running_value())
    }

    fn final_value(&self) -> NumericEntry {
        self.state.final_value()
    }
}
