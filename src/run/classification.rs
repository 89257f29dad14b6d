//! Confusion matrix and top-k accuracy of a classifier: callbacks over the evaluated set, summed over all ranks.

use super::{RunFiles, tables, tensor_io::values};
use burn::tensor::{Element, Tensor, kind::Basic};
use burn::train::{InferenceStep, LearnerModel};
use collective::{
    metric::Classification,
    strategy::{Callback, Distributed, EpochReport, Join, LoggedValue},
};
use std::{
    iter,
    path::{Path, PathBuf},
};

fn read<E: Element, const D: usize, K: Basic>(answers: Tensor<D, K>) -> Result<Vec<E>, String> {
    values(answers).map_err(|reason| format!("cannot read the answers to the test samples: {reason}"))
}

/// Callback that writes the confusion matrix of each evaluation to a CSV file.
pub struct Confusion {
    classes: usize,
    /// `classes` × `classes`, row by row: rows are labels, columns are predictions.
    counts: Vec<u64>,
    /// Output file on rank 0, `None` on other ranks.
    file: Option<PathBuf>,
}

impl Confusion {
    /// Creates the callback for labels below `classes`. It writes `confusion_matrix.csv` if there are files.
    pub fn new(files: Option<&RunFiles>, classes: usize) -> Self {
        let file = files.map(|files| files.folder.join("confusion_matrix.csv"));
        Self { classes, counts: vec![0; classes * classes], file }
    }

    /// Writes the matrix, with a row per label and a column per prediction.
    fn write(&self, file: &Path) -> anyhow::Result<()> {
        let header = iter::once("label".to_owned()).chain((0..self.classes).map(|answer| answer.to_string()));
        tables::write(file, header, self.counts.chunks(self.classes).enumerate())
    }
}

// ANCHOR: distributed
impl Distributed for Confusion {
    type State = Vec<u64>;

    fn state(&mut self) -> Vec<u64> {
        self.counts.clone()
    }

    fn join(&mut self, states: Vec<Vec<u64>>) {
        self.counts.fill(0);
        for state in states {
            self.counts.iter_mut().zip(state).for_each(|(sum, count)| *sum += count);
        }
    }
}
// ANCHOR_END: distributed

impl<M: LearnerModel + InferenceStep<Output = Classification>> Callback<M> for Confusion {
    fn evaluated(&mut self, output: &Classification, _samples: usize) -> Result<(), String> {
        let Some((logits, labels)) = output.answers() else { return Ok(()) };
        let [batch, _] = logits.dims();
        let answers = read::<i64, 1, _>(logits.argmax(1).reshape([batch]))?;
        for (label, answer) in read::<i64, 1, _>(labels)?.into_iter().zip(answers) {
            // The data set has validated its labels; predictions are below the number of logits.
            if let Some(count) = self.counts.get_mut(label as usize * self.classes + answer as usize) {
                *count += 1;
            }
        }
        Ok(())
    }

    fn distributed(&mut self) -> Option<&mut dyn Join> {
        Some(self)
    }

    fn evaluation_done(&mut self, _: &EpochReport) -> Result<Vec<LoggedValue>, String> {
        if let Some(file) = &self.file {
            self.write(file).map_err(|error| format!("{error:#}"))?;
        }
        self.counts.fill(0);
        Ok(Vec::new())
    }
}

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

impl<M: LearnerModel + InferenceStep<Output = Classification>> Callback<M> for TopK {
    fn evaluated(&mut self, output: &Classification, _samples: usize) -> Result<(), String> {
        let Some((logits, labels)) = output.answers() else { return Ok(()) };
        let [_, classes] = logits.dims();
        let logits = read::<f32, 2, _>(logits)?;
        for (label, logits) in read::<i64, 1, _>(labels)?.into_iter().zip(logits.chunks(classes.max(1))) {
            let own = logits.get(label as usize).copied().unwrap_or(f32::NAN);
            let larger = logits.iter().filter(|logit| **logit > own).count();
            self.counts[0] += u64::from(!own.is_nan() && larger < self.k);
            self.counts[1] += 1;
        }
        Ok(())
    }

    fn distributed(&mut self) -> Option<&mut dyn Join> {
        Some(self)
    }

    fn evaluation_done(&mut self, _: &EpochReport) -> Result<Vec<LoggedValue>, String> {
        let [correct, samples] = std::mem::take(&mut self.counts);
        let share = correct as f64 / samples.max(1) as f64;
        Ok(vec![LoggedValue::percent(format!("top-{} accuracy", self.k), share)])
    }
}
