//! The loop that [`DistributedDataParallel`] runs on every rank: epochs of steps, the checks
//! between them, and the evaluation.

use super::{DistributedDataParallel, EpochReport, StepReport, TrainInput, TrainedOutput, ValidOutput};
use crate::{
    Error, ReduceOp,
    gradient::{Reducer, clip_by_global_norm},
    loader::Shares,
    metric::StepOutput,
    replica,
    sync_batch_norm::with_share,
};
use burn::data::dataloader::Progress;
use burn::tensor::Tensor;
use burn::train::{
    EventProcessorTraining, InferenceStep, Learner, LearnerEvent, LearnerModel, TrainingComponents,
    TrainingItem,
};
use std::{iter::Peekable, time::Instant};

/// Why a run ends before its last epoch.
pub(super) enum Stop {
    /// The group failed, or the ranks disagree.
    Failed(Error),
    /// burn-train's interrupter was told to stop, here or on another rank.
    Interrupted,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

/// One run in progress on one rank.
pub(super) struct Run<'a, M: LearnerModel> {
    pub ddp: &'a DistributedDataParallel<M>,
    pub learner: Learner<M>,
    pub components: TrainingComponents<M>,
    pub reducer: Reducer,
    /// Batches an optimizer step.
    pub accumulation: usize,
    /// Whether the user knows that overlap has ended.
    pub warned: bool,
    /// Optimizer steps done.
    pub step: usize,
}

/// One optimizer step, over all ranks.
struct Trained {
    samples: usize,
    totals: Vec<f64>,
    /// Whether any rank was told to stop: ranks must leave together.
    stop: bool,
}

/// Sums over the samples of an epoch, or of a part of it.
#[derive(Default)]
struct Totals {
    sums: Vec<f64>,
    samples: usize,
}

impl Totals {
    fn add(&mut self, sums: &[f64], samples: usize) {
        self.sums.resize(sums.len(), 0.0);
        self.sums.iter_mut().zip(sums).for_each(|(to, from)| *to += from);
        self.samples += samples;
    }

    fn mean_loss(&self) -> f64 {
        self.sums.first().copied().unwrap_or(0.0) / self.samples.max(1) as f64
    }
}

impl<M: LearnerModel> Run<'_, M>
where
    TrainedOutput<M>: StepOutput,
    ValidOutput<M>: StepOutput,
{
    /// The whole run.
    pub fn epochs(&mut self, starting_epoch: usize) -> Result<(), Stop> {
        self.share_state()?;
        replica::verify_equal(&self.learner.model(), &self.ddp.group, "before the first step")?;
        for epoch in starting_epoch..=self.components.num_epochs {
            let began = Instant::now();
            let trained = self.train(epoch)?;
            let train_time = began.elapsed();
            // BatchNorm's running statistics differ between ranks, as in PyTorch; rank 0's are kept.
            self.share_state()?;
            let when = format!("after epoch {epoch}");
            let digest = replica::verify_equal(&self.learner.model(), &self.ddp.group, &when)?;
            let valid = self.evaluate(epoch)?;
            self.ddp.observer.epoch_done(&EpochReport {
                epoch,
                train_loss: trained.mean_loss(),
                train_samples: trained.samples,
                valid_totals: valid.sums,
                valid_samples: valid.samples,
                train_time,
                elapsed: began.elapsed(),
                digest,
            });
            if self.end_of_epoch(epoch)? || self.finished() {
                break;
            }
        }
        Ok(())
    }

    /// The steps of one epoch.
    fn train(&mut self, epoch: usize) -> Result<Totals, Stop> {
        let (ddp, mut epoch_totals) = (self.ddp, Totals::default());
        let steps = ddp.train.steps().div_ceil(self.accumulation);
        ddp.observer.epoch_started(epoch, steps, ddp.train.samples());
        self.event(LearnerEvent::StartSplit { epoch_number: epoch, total_items: ddp.train.samples() });
        let mut clock = Instant::now();
        let mut shares = ddp.train.epoch(epoch, 0, &ddp.device).peekable();
        while let Some(Trained { samples, totals, stop }) = self.train_step(&mut shares)? {
            epoch_totals.add(&totals, samples);
            let report = StepReport {
                step: self.step,
                epoch,
                loss: totals.first().copied().unwrap_or(0.0) / samples.max(1) as f64,
                lr: self.learner.lr_current().base(),
                samples,
                elapsed: clock.elapsed(),
            };
            clock = Instant::now();
            ddp.observer.step_done(&report);
            let item = TrainedOutput::<M>::from_totals(&totals, samples);
            let progress = Progress::new(epoch_totals.samples, ddp.train.samples(), Some("items".into()));
            let lr = Some(self.learner.lr_current());
            self.event(LearnerEvent::ProcessedItem(TrainingItem::new(item, progress, Some(self.step), lr)));
            if stop {
                return Err(Stop::Interrupted);
            }
            if self.finished() {
                break;
            }
        }
        self.event(LearnerEvent::EndSplit(epoch));
        Ok(epoch_totals)
    }

    /// Forward and backward over as many batches as make a step, average, optimize. `None` at the
    /// end of the epoch, which comes at the same time on all ranks.
    fn train_step(&mut self, shares: &mut Peekable<Shares<TrainInput<M>>>) -> Result<Option<Trained>, Stop> {
        let (ddp, model) = (self.ddp, self.learner.model());
        let (mut samples, mut totals) = (0, Vec::new());
        for batch in 1.. {
            let Some(share) = shares.next() else { return Ok(None) };
            let share = share.map_err(|error| self.bad_data(error))?;
            samples += share.global_samples;
            if batch < self.accumulation && shares.peek().is_some() {
                let local = self.reducer.local(&model);
                let output =
                    with_share(share.samples, share.global_samples, || (ddp.step)(&local, share.item))?;
                add_totals(&mut totals, &output.item, share.samples)?;
                self.reducer.accumulate(output.grads, &model, share.samples);
                continue;
            }
            let step = self.reducer.step(&model, share.samples, samples)?;
            let watched = step.watch(&model);
            let output =
                with_share(share.samples, share.global_samples, || (ddp.step)(&watched, share.item))?;
            add_totals(&mut totals, &output.item, share.samples)?;
            totals.push(f32::from(u8::from(self.components.interrupter.should_stop())));
            let mut grads = step.finish(output.grads, &model, &mut totals)?;
            if let Some(max_norm) = self.ddp.clip {
                (grads, _) = clip_by_global_norm(grads, &model, max_norm)?;
            }
            self.step += 1;
            self.learner.lr_step();
            self.learner.optimizer_step(grads);
            self.warn();
            break;
        }
        let stop = totals.pop().unwrap_or(0.0) > 0.0;
        Ok(Some(Trained { samples, totals: totals.into_iter().map(f64::from).collect(), stop }))
    }

    /// What the first step shows about synchronisation, and the step that ends overlap.
    fn warn(&mut self) {
        let observer = &self.ddp.observer;
        if self.step == 1 {
            let unused: Vec<String> =
                self.reducer.unused().map(|(path, ranks)| format!("{path} ({ranks} ranks)")).collect();
            if !unused.is_empty() {
                let world = self.ddp.group.world_size();
                let unused = unused.join(", ");
                observer.warned(&format!("not all {world} ranks used these parameters in step 1: {unused}"));
            }
        }
        if let (Some(reason), false) = (self.reducer.fallback(), self.warned) {
            self.warned = true;
            observer.warned(&format!("gradients are synchronised after backward from now on: {reason}"));
        }
    }

    /// Every evaluation sample once, over all ranks.
    fn evaluate(&mut self, epoch: usize) -> Result<Totals, Stop> {
        let ddp = self.ddp;
        ddp.observer.evaluation_started(epoch, ddp.valid.samples());
        self.valid_event(LearnerEvent::StartSplit { epoch_number: epoch, total_items: ddp.valid.samples() });
        let (model, mut mine) = (self.learner.model().valid(), Totals::default());
        for share in ddp.valid.epoch(1, 0, &ddp.device.clone().inner()) {
            let share = share.map_err(|error| self.bad_data(error))?;
            let mut sums = read::<f64>(InferenceStep::step(&model, share.item).totals())?;
            if share.samples == 0 {
                sums.fill(0.0);
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
            Some(self.step),
            None,
        )));
        self.valid_event(LearnerEvent::EndSplit(epoch));
        Ok(Totals { sums: all, samples })
    }

    /// Checkpoint on rank 0 and early stopping by rank 0's decision; whether to stop.
    fn end_of_epoch(&mut self, epoch: usize) -> Result<bool, Stop> {
        self.event(LearnerEvent::EndEpoch(epoch));
        let Self { components: parts, learner, ddp, .. } = self;
        parts.interrupter.fail_on_error(parts.event_processor.flush());
        let mut stop = [0u8];
        if ddp.group.rank() == 0 {
            if let Some(checkpointer) = &mut parts.checkpointer {
                checkpointer.checkpoint(learner, epoch, &parts.event_store);
            }
            if let Some(early) = &mut parts.early_stopping {
                stop = [u8::from(early.should_stop(epoch, &parts.event_store))];
            }
        }
        ddp.group.broadcast(&mut stop, 0)?;
        Ok(stop == [1])
    }

    fn finished(&self) -> bool {
        self.ddp.max_steps.is_some_and(|max| self.step >= max)
    }

    /// Gives every rank rank 0's parameters and buffers.
    fn share_state(&mut self) -> Result<(), Stop> {
        if self.ddp.group.world_size() > 1 {
            let model = replica::broadcast(self.learner.model(), &self.ddp.group, 0)?;
            self.learner.load_model(model.into_record());
        }
        Ok(())
    }

    fn bad_data(&self, error: burn::data::dataset::DatasetError) -> Stop {
        // A loader may have asked the other ranks; what happened there is not about this rank's data.
        let collective = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<Error>());
        let failure = match collective {
            None => {
                Error::Invalid(format!("rank {} could not read its data: {error}", self.ddp.group.rank()))
            }
            Some(error) => error.clone(),
        };
        self.components.interrupter.fail(error);
        Stop::Failed(failure)
    }

    fn event(&mut self, event: LearnerEvent<TrainedOutput<M>>) {
        let result = self.components.event_processor.process_train(event);
        self.components.interrupter.fail_on_error(result);
    }

    fn valid_event(&mut self, event: LearnerEvent<ValidOutput<M>>) {
        let result = self.components.event_processor.process_valid(event);
        self.components.interrupter.fail_on_error(result);
    }
}

/// Adds what a step says about its samples, if it has any.
fn add_totals(to: &mut Vec<f32>, output: &impl StepOutput, samples: usize) -> Result<(), Error> {
    let mut totals = read::<f32>(output.totals())?;
    if samples == 0 {
        totals.fill(0.0);
    }
    to.resize(totals.len(), 0.0);
    to.iter_mut().zip(totals).for_each(|(to, from)| *to += from);
    Ok(())
}

/// The values of a small tensor, on the host.
fn read<E: burn::tensor::Element>(tensor: Tensor<1>) -> Result<Vec<E>, Error> {
    let broken =
        |reason: String| Error::Io { what: "reading a step's totals from the device".into(), reason };
    let data = tensor.try_into_data().map_err(|e| broken(e.to_string()))?;
    data.convert::<E>().try_into_vec().map_err(|e| broken(format!("{e:?}")))
}
