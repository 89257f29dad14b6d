//! Evaluation over all ranks, which counts every sample once.

use super::{
    EpochReport, StepModel, ValidInput, ValidOutput,
    run::{Run, Stop},
};
use crate::{
    ReduceOp, Result,
    data::loader::DistributedLoader,
    ddp::engine::masked,
    readback::Readback,
    train::metric::{StepOutput, add_totals, check_totals, means},
};
use burn::data::dataloader::Progress;
use burn::train::{InferenceStep, LearnerEvent, TrainingItem};

/// Sums over the samples of an evaluation.
#[derive(Default)]
pub(super) struct Totals {
    pub sums: Vec<f64>,
    pub samples: usize,
}

impl Totals {
    /// Adds the totals and the number of samples of a batch.
    fn add(&mut self, (mut totals, samples): (Readback, usize)) -> Result<()> {
        add_totals(&mut self.sums, &totals.wait()?.concat());
        self.samples += samples;
        Ok(())
    }
}

impl<M: StepModel> Run<'_, M> {
    /// Evaluates the validation set after an epoch.
    pub(super) fn evaluate(&mut self, epoch: usize) -> Result<Totals, Stop> {
        let settings = self.settings;
        settings.observe(|observer| observer.evaluation_started(epoch, settings.valid.samples()));
        self.valid_event(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items: settings.valid.samples(),
        });
        let totals = self.totals_over(&*settings.valid, settings.test.is_none())?;
        let item = ValidOutput::<M>::from_totals(&totals.sums, totals.samples);
        let progress = Progress::new(totals.samples, totals.samples, Some("items".into()));
        let step = Some(self.position.step);
        self.valid_event(LearnerEvent::ProcessedItem(TrainingItem::new(item, progress, step, None)));
        self.valid_event(LearnerEvent::EndSplit(epoch));
        Ok(totals)
    }

    /// Evaluates the test set at the end of a run, if it is a set of its own or the best checkpoint was loaded.
    ///
    /// `last` is the report of the last epoch.
    pub(super) fn test(&mut self, last: EpochReport) -> Result<(), Stop> {
        let settings = self.settings;
        let loads_best = settings.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.load_best);
        let Some(test) = settings.test.as_ref().or(loads_best.then_some(&settings.valid)) else {
            return Ok(());
        };
        settings.observe(|observer| observer.evaluation_started(last.epoch, test.samples()));
        let Totals { sums, samples } = self.totals_over(&**test, true)?;
        let metrics = means::<ValidOutput<M>>(&sums, samples);
        let mut report = EpochReport { metrics, valid_samples: samples, logged: Vec::new(), ..last };
        settings.callbacks.join(&mut report, &settings.group, true)?;
        settings.observe(|observer| observer.tested(&report));
        Ok(())
    }

    /// Totals over every sample of `loader` once, over all ranks.
    ///
    /// All callbacks receive the outputs if this set `is_last`; otherwise those with metrics do.
    fn totals_over(
        &self,
        loader: &dyn DistributedLoader<ValidInput<M>>,
        is_last: bool,
    ) -> Result<Totals, Stop> {
        let settings = self.settings;
        let (model, mut mine) = (self.evaluated_model().valid(), Totals::default());
        // Waits for a batch's totals after the next batch is launched.
        let mut launched = None;
        let most = settings.evaluation_batches.unwrap_or(usize::MAX);
        for batch in loader.epoch(1, 0, &settings.device.clone().inner()).take(most) {
            let batch = batch?;
            let output = InferenceStep::step(&model, batch.item);
            let totals = Readback::start(vec![masked(output.totals().inner(), batch.samples)])?;
            if let Some(before) = launched.replace((totals, batch.samples)) {
                mine.add(before)?;
            }
            if batch.samples > 0 {
                settings.callbacks.evaluated(&output, batch.samples, is_last)?;
            }
        }
        launched.map_or(Ok(()), |last| mine.add(last))?;
        let mut all = mine.sums;
        all.push(mine.samples as f64);
        settings.group.all_reduce(&mut all, ReduceOp::Sum)?;
        let samples = all.pop().unwrap_or(0.0) as usize;
        if samples > 0 {
            check_totals::<ValidOutput<M>>(&all)?;
        }
        Ok(Totals { sums: all, samples })
    }
}
