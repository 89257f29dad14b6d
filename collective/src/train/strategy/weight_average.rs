//! Exponential moving average of a model's weights.

use super::Snapshot;
use crate::{
    Error, Result,
    parameters::{TensorMap, values, with_values},
};
use burn::module::Module;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;

/// Exponential moving average of a model's trainable parameters (Polyak and Juditsky 1992), without a graph.
///
/// The first update copies the parameters, as PyTorch's `AveragedModel` does. Buffers are not averaged.
pub(super) struct WeightAverage {
    decay: f64,
    /// The averages, by the parameter's identity.
    weights: TensorMap,
}

impl WeightAverage {
    /// Creates the average, which is that of `resumed` if the run is resumed. `model` has the snapshot's parameters.
    ///
    /// # Errors
    /// If the snapshot has no average, or one of another model.
    pub fn new<M: Module>(decay: f64, model: &M, resumed: Option<&Snapshot>) -> Result<Self> {
        let mut average = Self { decay, weights: TensorMap::new() };
        let Some(snapshot) = resumed else { return Ok(average) };
        let failed = |reason: String| {
            Error::Invalid(format!(
                "the checkpoint's moving average of the weights cannot be loaded: {reason}"
            ))
        };
        let Some(bytes) = snapshot.records.get("ema") else {
            return Err(failed("the checkpoint has none".into()));
        };
        let record = ModuleRecord::from_bytes(Bytes::from_bytes_vec(bytes.clone()));
        let loaded = record.and_then(|record| model.clone().try_load_record(record));
        average.update(&loaded.map_err(|error| failed(error.to_string()))?);
        Ok(average)
    }

    /// Adds the parameters after an optimizer step.
    pub fn update<M: Module>(&mut self, model: &M) {
        for (id, new) in values(model, true) {
            let average = match self.weights.remove(&id) {
                Some(old) => old.mul_scalar(self.decay) + new.mul_scalar(1.0 - self.decay),
                None => new,
            };
            self.weights.insert(id, average);
        }
    }

    /// Replaces the trainable parameters of `model` by their averages.
    pub fn applied<M: Module>(&self, model: M) -> M {
        with_values(model, &self.weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::{
        nn::{Linear, LinearConfig},
        tensor::Device,
    };

    fn model(weight: f32) -> Linear {
        let device = Device::flex().autodiff();
        let mut model: Linear = LinearConfig::new(1, 1).init(&device);
        model.weight = model.weight.map(|old| old.full_like(weight).set_require_grad(true));
        model
    }

    fn weight(model: &Linear) -> f32 {
        model.weight.val().into_scalar()
    }

    #[test]
    fn the_average_follows_the_formula_and_frozen_parameters_are_kept() {
        let first = model(1.0);
        let mut average = WeightAverage::new(0.9, &first, None).expect("a new one");
        average.update(&first);
        let mut second = first.clone();
        second.weight = second.weight.map(|old| old.full_like(2.0).set_require_grad(true));
        average.update(&second);
        assert!((weight(&average.applied(second.clone())) - 1.1).abs() < 1e-6);
        assert_eq!(weight(&second), 2.0);
        assert_eq!(weight(&average.applied(second.no_grad())), 2.0);
    }
}
