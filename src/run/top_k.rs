//! Top-k accuracy of a classifier: a callback over the evaluated set, summed over all ranks.

use crate::run::tensor_io::values;
use burn::train::{InferenceStep, LearnerModel};
use collective::{
    metric::Classification,
    strategy::{Callback, Distributed, EpochReport, Join, LoggedValue},
};

/// Callback that reports the share of samples whose label is among the `k` largest logits.
pub struct TopK {
    k: usize,
    /// Correct samples and all samples.
    counts: [u64; 2],
}

impl TopK {
    /// Creates the callback.
    pub fn new(k: usize) -> Self {
        Self { k, counts: [0; 2] }
    }

    fn count(&mut self, output: &Classification) -> Result<(), String> {
        let Some((logits, labels)) = output.answers() else { return Ok(()) };
        let [_, classes] = logits.dims();
        let logits = values::<f32, 2, _>(logits)?;
        for (label, logits) in values::<i64, 1, _>(labels)?.into_iter().zip(logits.chunks(classes.max(1))) {
            let own = logits.get(label as usize).copied().unwrap_or(f32::NAN);
            let larger = logits.iter().filter(|logit| **logit > own).count();
            self.counts[0] += u64::from(!own.is_nan() && larger < self.k);
            self.counts[1] += 1;
        }
        Ok(())
    }
}

impl Distributed for TopK {
    type State = [u64; 2];

    fn state(&mut self) -> [u64; 2] {
        self.counts
    }

    fn join(&mut self, states: Vec<[u64; 2]>) {
        self.counts = states.into_iter().fold([0; 2], |[a, b], [c, d]| [a + c, b + d]);
    }
}

impl<M> Callback<M> for TopK
where
    M: LearnerModel,
    M: InferenceStep<Output = Classification>,
{
    fn evaluated(&mut self, output: &Classification, _samples: usize) -> Result<(), String> {
        self.count(output).map_err(|reason| format!("cannot read the answers to the test samples: {reason}"))
    }

    fn distributed(&mut self) -> Option<&mut dyn Join> {
        Some(self)
    }

    fn epoch_done(&mut self, _: &EpochReport) -> Result<Option<LoggedValue>, String> {
        let [correct, samples] = std::mem::take(&mut self.counts);
        let share = correct as f64 / samples.max(1) as f64;
        Ok(Some(LoggedValue::percent(format!("top-{} accuracy", self.k), share)))
    }
}
