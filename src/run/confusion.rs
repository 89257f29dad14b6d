//! Confusion matrix of a classifier: a callback over the test set, summed over all ranks.

use super::{RunFiles, tensor_io::values};
use crate::process::atomic_file;
use burn::train::{InferenceStep, LearnerModel};
use collective::{
    metric::Classification,
    strategy::{Callback, Distributed, EpochReport, Join, LoggedValue},
};
use std::path::PathBuf;

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

    fn count(&mut self, output: &Classification) -> Result<(), String> {
        let Some((logits, labels)) = output.answers() else { return Ok(()) };
        let [batch, _] = logits.dims();
        let answers = values::<i64, 1, _>(logits.argmax(1).reshape([batch]))?;
        for (label, answer) in values::<i64, 1, _>(labels)?.into_iter().zip(answers) {
            // The data set has validated its labels; predictions are below the number of logits.
            if let Some(count) = self.counts.get_mut(label as usize * self.classes + answer as usize) {
                *count += 1;
            }
        }
        Ok(())
    }

    /// Formats the matrix as CSV, with a row per label and a column per prediction.
    fn table(&self) -> String {
        let header = (0..self.classes).map(|answer| format!(",{answer}")).collect::<String>();
        let row = |(label, counts): (usize, &[u64])| {
            format!("{label}{}\n", counts.iter().map(|count| format!(",{count}")).collect::<String>())
        };
        format!(
            "label{header}\n{}",
            self.counts.chunks(self.classes).enumerate().map(row).collect::<String>()
        )
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

impl<M> Callback<M> for Confusion
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
        let table = self.table();
        self.counts.fill(0);
        if let Some(file) = &self.file {
            let written = atomic_file::write(file, table.as_bytes());
            written.map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
        Ok(None)
    }
}
