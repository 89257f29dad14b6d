//! Output of a step: the loss per character.

use burn::tensor::{Device, ExecutionError, Tensor};
use burn::train::ItemLazy;
use burn::train::metric::{Adaptor, LossInput};
use collective::metric::StepOutput;
use std::f64::consts::LN_2;

/// Loss of windows of equal length, each of which is a sample.
#[derive(Clone, Debug)]
pub struct CharacterLoss {
    /// `[1]`: sum over the windows of the mean loss per character.
    total: Tensor<1>,
    windows: usize,
}

impl CharacterLoss {
    /// Creates the output from the mean loss `[1]` over all characters of `windows` windows.
    pub fn new(loss: Tensor<1>, windows: usize) -> Self {
        Self { total: loss.inner().mul_scalar(windows as f32), windows }
    }
}

impl StepOutput for CharacterLoss {
    fn totals(&self) -> Tensor<1> {
        self.total.clone()
    }

    fn from_totals(totals: &[f64], windows: usize) -> Self {
        let total = totals.first().copied().unwrap_or(f64::NAN);
        Self { total: Tensor::from_data([total], &Device::flex()), windows }
    }
}

impl ItemLazy for CharacterLoss {
    fn sync(self) -> Result<Self, ExecutionError> {
        Ok(self)
    }
}

impl Adaptor<LossInput> for CharacterLoss {
    fn adapt(&self) -> LossInput {
        LossInput::new(self.total.clone().div_scalar(self.windows.max(1) as f32))
    }
}

/// Formats a mean loss per character in nats, bits and as a perplexity.
pub fn describe(nats: f64) -> String {
    format!("{nats:.4} nats = {:.4} bits per character, perplexity {:.2}", nats / LN_2, nats.exp())
}
