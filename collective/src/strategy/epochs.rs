//! The loop that [`DistributedDataParallel`] runs on every rank: epochs of steps, the checks
//! between them, and the evaluation.

use super::{DistributedDataParallel, EpochReport, StepReport, TrainInput, TrainedOutput, ValidOutput};
use crate::{
    Error, ReduceOp, gradient::GradientBuckets, loader::Share, metric::StepOutput, replica,
    sync_batch_norm::with_share,
};
use burn::data::dataloader::Progress;
use burn::tensor::Tensor;
use burn::train::{
    EventProcessorTraining, InferenceStep, Learner, LearnerEvent, LearnerModel, TrainingComponents,
    TrainingItem,
};
use std::time::Instant;

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
    pub buckets: GradientBuckets,
    /// Optimizer steps done.
    pub step: usize,
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
        if self.components.grad_accumulation.is_some() {
            return Err(
                Error::Invalid("gradient accumulation is not supported by this strategy".into()).into()
            );
        }
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
        ddp.observer.epoch_started(epoch, ddp.train.steps(), ddp.train.samples());
        self.event(LearnerEvent::StartSplit { epoch_number: epoch, total_items: ddp.train.samples() });
        let mut clock = Instant::now();
        for share in ddp.train.epoch(epoch, 0, &ddp.device) {
            let share = share.map_err(|error| self.bad_data(error))?;
            let (samples, step_totals, stop) = self.train_step(share)?;
            epoch_totals.add(&step_totals, samples);
            let report = StepReport {
                step: self.step,
                epoch,
                loss: step_totals.first().copied().unwrap_or(0.0) / samples.max(1) as f64,
                lr: self.learner.lr_current().base(),
                samples,
                elapsed: clock.elapsed(),
            };
            clock = Instant::now();
            ddp.observer.step_done(&report);
            let item = TrainedOutput::<M>::from_totals(&step_totals, samples);
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

    /// Forward, backward, average, optimize. Returns the global samples and totals, and whether
    /// any rank was told to stop: ranks must leave together.
    fn train_step(&mut self, share: Share<TrainInput<M>>) -> Result<(usize, Vec<f64>, bool), Stop> {
        let output = with_share(share.samples, share.global_samples, || self.learner.train_step(share.item));
        let mut totals = read::<f32>(output.item.totals())?;
        if share.samples == 0 {
            totals.fill(0.0);
        }
        totals.push(f32::from(u8::from(self.components.interrupter.should_stop())));
        let model = self.learner.model();
        let weight = share.samples as f32 / share.global_samples.max(1) as f32;
        let grads = self.buckets.average(output.grads, &model, weight, &mut totals, &self.ddp.group)?;
        self.step += 1;
        self.learner.lr_step();
        self.learner.optimizer_step(grads);
        let stop = totals.pop().unwrap_or(0.0) > 0.0;
        Ok((share.global_samples, totals.into_iter().map(f64::from).collect(), stop))
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
        let message = format!("rank {} could not read its data: {error}", self.ddp.group.rank());
        self.components.interrupter.fail(error);
        Stop::Failed(Error::Invalid(message))
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

/// The values of a small tensor, on the host.
fn read<E: burn::tensor::Element>(tensor: Tensor<1>) -> Result<Vec<E>, Error> {
    let broken =
        |reason: String| Error::Io { what: "reading a step's totals from the device".into(), reason };
    let data = tensor.try_into_data().map_err(|e| broken(e.to_string()))?;
    data.convert::<E>().try_into_vec().map_err(|e| broken(format!("{e:?}")))
}
