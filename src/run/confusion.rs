//! The confusion matrix of a classifier: a callback over the test set, joined over all ranks.

use crate::{process::atomic_file, run::tensor_io::values};
use burn::train::{InferenceStep, LearnerModel};
use collective::{
    metric::Classification,
    strategy::{Callback, Distributed, EpochReport, Join},
};
use std::path::PathBuf;

/// Counts the answers to all test samples, a row for each label with a column for each answer, and writes them to a
/// file.
pub struct Confusion {
    classes: usize,
    counts: Vec<u64>,
    /// On the rank that writes.
    file: Option<PathBuf>,
}

impl Confusion {
    /// For labels below `classes`. `file` is that of the rank that writes.
    pub fn new(file: Option<PathBuf>, classes: usize) -> Self {
        Self { classes, counts: vec![0; classes * classes], file }
    }

    fn count(&mut self, output: &Classification) -> Result<(), String> {
        let Some((logits, labels)) = output.answers() else { return Ok(()) };
        let [batch, _] = logits.dims();
        let answers = values::<i64, 1, _>(logits.argmax(1).reshape([batch]))?;
        for (label, answer) in values::<i64, 1, _>(labels)?.into_iter().zip(answers) {
            // Labels were checked when the data was read, and there are as many answers as logits.
            if let Some(count) = self.counts.get_mut(label as usize * self.classes + answer as usize) {
                *count += 1;
            }
        }
        Ok(())
    }

    /// As CSV: a row for each label, a column for each answer.
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

    fn epoch_done(&mut self, _: &EpochReport) -> Result<Option<(String, String)>, String> {
        let table = self.table();
        self.counts.fill(0);
        if let Some(file) = &self.file {
            let written = atomic_file::write(file, table.as_bytes());
            written.map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
        Ok(None)
    }
}
