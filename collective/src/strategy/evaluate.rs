//! Evaluation: every sample once, over all ranks.

use super::{
    TrainedOutput, ValidOutput,
    run::{Run, Stop},
    totals::{Totals, totals_of},
};
use crate::{ReduceOp, metric::StepOutput, readback::Readback};
use burn::data::dataloader::Progress;
use burn::train::{InferenceStep, LearnerEvent, LearnerModel, TrainingItem};

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
            let totals = Readback::start(vec![totals_of(&output, batch.samples)])?;
            if let Some(before) = launched.replace((totals, batch.samples)) {
                add(&mut mine, before)?;
            }
            if batch.samples > 0 {
                settings.each_callback(|callback| callback.evaluated(&output, batch.samples))?;
            }
        }
        launched.map_or(Ok(()), |last| add(&mut mine, last))?;
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

/// Adds a batch's totals, and how many samples it has.
fn add(to: &mut Totals, (totals, samples): (Readback, usize)) -> crate::Result<()> {
    to.add(&totals.wait()?.concat(), samples);
    Ok(())
}
