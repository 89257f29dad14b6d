//! Evaluation: every sample once, over all ranks.

use super::{
    TrainedOutput, ValidOutput,
    run::{Run, Stop},
};
use crate::{
    ReduceOp, Result,
    metric::{StepOutput, add_totals},
    readback::Readback,
    wrapper::engine::masked,
};
use burn::data::dataloader::Progress;
use burn::train::{InferenceStep, LearnerEvent, LearnerModel, TrainingItem};

/// Sums over the samples of an evaluation.
#[derive(Default)]
pub(super) struct Totals {
    pub sums: Vec<f64>,
    pub samples: usize,
}

impl Totals {
    /// Adds a batch's totals, and how many samples it has.
    fn add(&mut self, (totals, samples): (Readback, usize)) -> Result<()> {
        add_totals(&mut self.sums, &totals.wait()?.concat());
        self.samples += samples;
        Ok(())
    }
}

impl<M: LearnerModel> Run<'_, M>
where
    TrainedOutput<M>: StepOutput,
    ValidOutput<M>: StepOutput,
{
    /// Every evaluation sample once, over all ranks.
    pub(super) fn evaluate(&mut self, epoch: usize) -> Result<Totals, Stop> {
        let settings = self.settings;
        settings.observer.evaluation_started(epoch, settings.valid.samples());
        self.valid_event(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items: settings.valid.samples(),
        });
        let (model, mut mine) = (self.learner.model().valid(), Totals::default());
        // A batch's totals are awaited when the next one is launched.
        let mut launched = None;
        for batch in settings.valid.epoch(1, 0, &settings.device.clone().inner()) {
            let batch = batch.map_err(|error| self.bad_data(error))?;
            let output = InferenceStep::step(&model, batch.item);
            let totals = Readback::start(vec![masked(output.totals().inner(), batch.samples)])?;
            if let Some(before) = launched.replace((totals, batch.samples)) {
                mine.add(before)?;
            }
            if batch.samples > 0 {
                settings.callbacks.each(|callback| callback.evaluated(&output, batch.samples))?;
            }
        }
        launched.map_or(Ok(()), |last| mine.add(last))?;
        let mut all = mine.sums;
        all.push(mine.samples as f64);
        settings.group.all_reduce(&mut all, ReduceOp::Sum)?;
        let samples = all.pop().unwrap_or(0.0) as usize;
        let item = ValidOutput::<M>::from_totals(&all, samples);
        let progress = Progress::new(samples, samples, Some("items".into()));
        self.valid_event(LearnerEvent::ProcessedItem(TrainingItem::new(
            item,
            progress,
            Some(self.position.step),
            None,
        )));
        self.valid_event(LearnerEvent::EndSplit(epoch));
        Ok(Totals { sums: all, samples })
    }
}
