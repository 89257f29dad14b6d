//! The steps of one epoch, on every rank.

use super::{
    StepReport, TrainInput, TrainedOutput, ValidOutput,
    run::{Run, Stop},
    totals::{add, add_output},
};
use crate::{
    Error,
    gradient::{clip_by_global_norm, timed},
    loader::Shares,
    metric::StepOutput,
    random,
    sampler::mix,
    sync_batch_norm::with_share,
};
use burn::data::dataloader::Progress;
use burn::train::{LearnerEvent, LearnerModel, TrainingItem};
use std::{iter::Peekable, time::Instant};

/// One optimizer step, over all ranks.
struct Trained {
    /// Of this rank.
    batches: usize,
    samples: usize,
    totals: Vec<f64>,
    /// Whether any rank was told to stop: ranks must leave together.
    stop: bool,
    /// Factor of the loss, in f16.
    loss_scale: Option<f32>,
}

impl<M: LearnerModel> Run<'_, M>
where
    TrainedOutput<M>: StepOutput,
    ValidOutput<M>: StepOutput,
{
    /// The steps that are left of the epoch; whether none is left behind.
    pub(super) fn train(&mut self) -> Result<bool, Stop> {
        let (ddp, epoch, done) = (self.ddp, self.position.epoch, self.position.done());
        let (began, earlier) = (Instant::now(), self.position.seconds);
        let (steps, total) = (ddp.train.steps_left(done).div_ceil(self.accumulation), ddp.train.samples());
        ddp.observer.epoch_started(epoch, steps, total.saturating_sub(done.samples));
        self.event(LearnerEvent::StartSplit { epoch_number: epoch, total_items: total });
        let mut clock = Instant::now();
        let mut shares = ddp.train.rest(epoch, done, &ddp.device).peekable();
        while !self.finished() {
            let Some(trained) = self.train_step(&mut shares)? else { break };
            let Trained { batches, samples, totals, stop, loss_scale } = trained;
            let skipped = self.reducer.skipped();
            self.position.skipped += usize::from(skipped);
            add(&mut self.position.totals, &totals);
            self.position.samples += samples;
            self.position.batches += batches;
            self.position.seconds = earlier + began.elapsed().as_secs_f64();
            let report = StepReport {
                step: self.position.step,
                epoch,
                loss: totals.first().copied().unwrap_or(0.0) / samples.max(1) as f64,
                lr: self.learner.lr_current().base(),
                samples,
                elapsed: clock.elapsed(),
                loss_scale,
                skipped,
            };
            clock = Instant::now();
            self.time.training += report.elapsed;
            ddp.observer.step_done(&report);
            let item = TrainedOutput::<M>::from_totals(&totals, samples);
            let progress = Progress::new(self.position.samples, total, Some("items".into()));
            let (step, lr) = (Some(self.position.step), Some(self.learner.lr_current()));
            self.event(LearnerEvent::ProcessedItem(TrainingItem::new(item, progress, step, lr)));
            if stop {
                return Err(self.stop()?);
            }
            if ddp
                .checkpoints
                .as_ref()
                .and_then(|c| c.every)
                .is_some_and(|n| self.position.step.is_multiple_of(n))
            {
                self.keep()?;
            }
        }
        self.event(LearnerEvent::EndSplit(epoch));
        Ok(shares.peek().is_none())
    }

    /// Forward and backward over as many batches as make a step, average, optimize. `None` at the
    /// end of the epoch, which comes at the same time on all ranks.
    fn train_step(&mut self, shares: &mut Peekable<Shares<TrainInput<M>>>) -> Result<Option<Trained>, Stop> {
        let (ddp, model) = (self.ddp, self.learner.model());
        let (mut samples, mut totals, mut batches) = (0, Vec::new(), 0);
        let loss_scale = self.reducer.scaler_state().map(|(scale, _)| scale);
        let more = timed(&mut self.time.data, || shares.peek().is_some());
        if let (Some(seed), true) = (ddp.seed, more) {
            let rank = mix(seed, 1 + ddp.group.rank() as u64);
            let step = mix(rank, 1 + self.position.step as u64);
            ddp.device.seed(step);
            random::seed(step);
        }
        for batch in 1.. {
            batches = batch;
            let Some(share) = timed(&mut self.time.data, || shares.next()) else { return Ok(None) };
            let share = share.map_err(|error| self.bad_data(error))?;
            samples += share.global_samples;
            if batch < self.accumulation && shares.peek().is_some() {
                let local = self.reducer.local(&model);
                let output =
                    with_share(share.samples, share.global_samples, || (ddp.step)(&local, share.item))?;
                add_output(&mut totals, &output.item, share.samples)?;
                ddp.each_callback(|callback| callback.trained(&output.item, share.samples))?;
                self.reducer.accumulate(output.grads, &model, share.samples);
                continue;
            }
            let step = self.reducer.step(&model, share.samples, samples)?;
            let watched = step.watch(&model);
            let output =
                with_share(share.samples, share.global_samples, || (ddp.step)(&watched, share.item))?;
            add_output(&mut totals, &output.item, share.samples)?;
            ddp.each_callback(|callback| callback.trained(&output.item, share.samples))?;
            let stop = self.components.interrupter.should_stop() || ddp.asked() > 0;
            totals.push(f32::from(u8::from(stop)));
            let own_loss = totals[0];
            let mut grads = step.finish(output.grads, &model, &mut totals)?;
            self.position.step += 1;
            self.check_loss(own_loss, totals[0])?;
            if let Some(max_norm) = ddp.clip {
                let norm;
                (grads, norm) = clip_by_global_norm(grads, &model, max_norm)?;
                self.check_norm(norm)?;
            }
            ddp.each_callback(|callback| callback.averaged(self.position.step, &model, &grads))?;
            self.learner.lr_step();
            self.learner.optimizer_step(grads);
            self.warn(loss_scale);
            break;
        }
        let stop = totals.pop().unwrap_or(0.0) > 0.0;
        let totals = totals.into_iter().map(f64::from).collect();
        Ok(Some(Trained { batches, samples, totals, stop, loss_scale }))
    }

    /// Fails on every rank if the loss over all ranks is NaN or infinite. Ranks communicate only then, to
    /// find those whose own part is.
    fn check_loss(&self, own: f32, all: f32) -> Result<(), Stop> {
        if all.is_finite() || self.ddp.non_finite_loss {
            return Ok(());
        }
        let group = &self.ddp.group;
        let finite = group.all_gather(&[u8::from(own.is_finite())])?;
        let ranks = finite.iter().zip(group.members()).filter(|(finite, _)| finite[0] == 0);
        let ranks = ranks.map(|(_, rank)| *rank).collect();
        Err(self.non_finite("training loss", f64::from(all), ranks))
    }

    /// Fails on every rank if the norm of the averaged gradients, the same bits on all ranks, is not finite.
    fn check_norm(&self, norm: f64) -> Result<(), Stop> {
        if norm.is_finite() || self.ddp.non_finite_loss {
            return Ok(());
        }
        Err(self.non_finite("norm of the gradients", norm, Vec::new()))
    }

    fn non_finite(&self, what: &str, value: f64, ranks: Vec<usize>) -> Stop {
        let (what, value) = (what.into(), value.to_string());
        Stop::Failed(Error::NonFinite { what, value, step: self.position.step, ranks })
    }

    /// What the first step shows about synchronisation, the step that ends overlap, and the first step that
    /// is skipped.
    fn warn(&mut self, loss_scale: Option<f32>) {
        let observer = &self.ddp.observer;
        if self.position.step == 1 {
            let unused: Vec<String> =
                self.reducer.unused().map(|(path, ranks)| format!("{path} ({ranks} ranks)")).collect();
            if !unused.is_empty() {
                let world = self.ddp.group.world_size();
                let unused = unused.join(", ");
                observer.warned(&format!("not all {world} ranks used these parameters in step 1: {unused}"));
            }
        }
        if let (Some(scale), true, false) = (loss_scale, self.reducer.skipped(), self.warned_of_skips) {
            self.warned_of_skips = true;
            let (step, next) = (self.position.step, self.reducer.loss_scale());
            observer.warned(&format!(
                "step {step} is skipped, because its gradients overflow f16 at loss scale {scale}; the next scale is \
                 {next}"
            ));
        }
        if let (Some(reason), false) = (self.reducer.fallback(), self.warned) {
            self.warned = true;
            observer.warned(&format!("gradients are synchronised after backward from now on: {reason}"));
        }
    }
}
