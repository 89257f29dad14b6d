//! Evaluation: every sample once, over all ranks.

use super::{
    TrainedOutput, ValidOutput,
    run::{Run, Stop},
    totals::{Totals, read},
};
use crate::{ReduceOp, metric::StepOutput};
use burn::data::dataloader::Progress;
use burn::train::{InferenceStep, LearnerEvent, LearnerModel, TrainingItem};

impl<M: LearnerModel> Run<'_, M>
where
    TrainedOutput<M>: StepOutput,
    ValidOutput<M>: StepOutput,
{
    /// Every evaluation sample once, over all ranks.
    pub(super) fn evaluate(&mut self, epoch: usize) -> Result<Totals, Stop> {
        let ddp = self.ddp;
        ddp.observer.evaluation_started(epoch, ddp.valid.samples());
        self.valid_event(LearnerEvent::StartSplit { epoch_number: epoch, total_items: ddp.valid.samples() });
        let (model, mut mine) = (self.learner.model().valid(), Totals::default());
        for share in ddp.valid.epoch(1, 0, &ddp.device.clone().inner()) {
            let share = share.map_err(|error| self.bad_data(error))?;
            let output = InferenceStep::step(&model, share.item);
            let mut sums = read::<f64>(output.totals())?;
            if share.samples == 0 {
                sums.fill(0.0);
            } else {
                ddp.each_callback(|callback| callback.evaluated(&output, share.samples))?;
            }
            mine.add(&sums, share.samples);
        }
        let mut all = mine.sums;
        all.push(mine.samples as f64);
        ddp.group.all_reduce(&mut all, ReduceOp::Sum)?;
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
