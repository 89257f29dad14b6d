//! The training step of all levels: random seed, gradient accumulation, synchronisation, clipping and checks for
//! non-finite values.
//!
//! The caller owns the module and the optimizer, because burn-train's `Learner` owns both.

use super::{Loss, StepOptions, local_sgd::OuterOptimizer};
use crate::{
    Error, ProcessGroup, Result,
    batch_context::BatchContext,
    batch_scope::{BatchScope, random_stream},
    data::loader::ShardedBatch,
    data::sampler::mix,
    gradient::{Agreement, FinishedStep, Norm, Reducer},
    module_state::require_trainable,
    readback::Readback,
};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Tensor};
use kernels::{host_tensor::is_flex, random::RandomStream};
use tracing::info_span;

/// Results of forward and backward over one batch.
pub(crate) struct BatchOutput {
    /// Gradients of the mean over this rank's samples.
    pub grads: GradientsParams,
    /// Sums over this rank's samples `[n]`, of which the first is the loss.
    pub totals: Tensor<1>,
    /// Values that are summed over all ranks together with the gradients.
    pub flags: Vec<f32>,
}

/// Result of one batch.
pub(crate) struct ComputedBatch {
    /// This rank's totals of the batch.
    pub own: Tensor<1>,
    /// The step that the batch completed; `None` if its gradients are accumulated.
    pub step: Option<SynchronisedStep>,
}

/// A synchronised step, whose gradients are for the optimizer.
pub(crate) struct SynchronisedStep {
    /// Gradients, averaged over the global batch and clipped. Empty if the step is skipped.
    pub grads: GradientsParams,
    pub unchecked: UncheckedStep,
    /// Samples over all ranks.
    pub samples: usize,
    /// Batches on this rank.
    pub batches: usize,
    /// Factor by which the loss was scaled, for f16.
    pub loss_scale: Option<f32>,
}

/// A step whose values may still be computed, copied to the host or summed over the ranks.
pub(crate) struct UncheckedStep {
    number: usize,
    /// This rank's totals.
    own: Tensor<1>,
    /// Sums of the flags over all ranks, or this rank's with local SGD.
    flags: Agreement,
    /// The totals over all ranks, or this rank's with local SGD.
    pub loss: Loss,
}

impl UncheckedStep {
    /// Whether all values are on the host, where the engine has checked them.
    pub fn is_checked(&self) -> bool {
        self.loss.is_ready() && self.flags.is_known()
    }
}

/// The batches of a step in progress.
#[derive(Default)]
struct Accumulated {
    batches: usize,
    samples: usize,
    averaged: usize,
    own: Option<Tensor<1>>,
    seeded: bool,
}

pub(crate) struct Engine {
    pub group: ProcessGroup,
    pub reducer: Reducer,
    /// Number of finished steps.
    pub steps: usize,
    pub options: StepOptions,
    device: Device,
    accumulated: Accumulated,
    random: Option<RandomStream>,
}

impl Engine {
    /// Creates the engine. Every rank of `group` must call it, on the training thread.
    ///
    /// # Errors
    /// [`Error::NotTrainable`], or if an option cannot be used with local SGD, or the group fails.
    pub fn new<M: Module>(
        module: &M,
        group: &ProcessGroup,
        device: &Device,
        options: StepOptions,
    ) -> Result<Self> {
        require_trainable(module)?;
        options.local_sgd.map_or(Ok(()), |local| local.check(&options))?;
        let alone = ProcessGroup::solo();
        let averaged_over = if options.local_sgd.is_some() { &alone } else { group };
        Ok(Self {
            group: group.clone(),
            reducer: Reducer::new(module, averaged_over, options.reducer.clone())?,
            steps: 0,
            device: device.clone(),
            options,
            accumulated: Accumulated::default(),
            random: None,
        })
    }

    /// The outer optimizer of local SGD, if it is enabled. `module` has equal parameters on all ranks, and every rank must
    /// call it.
    ///
    /// # Errors
    /// If the group fails.
    pub fn outer_optimizer<M: Module>(&self, module: &M) -> Result<Option<OuterOptimizer>> {
        let outer = |local| OuterOptimizer::new(module, &self.group, local, self.options.reducer.clone());
        self.options.local_sgd.map(outer).transpose()
    }

    /// Seeds the random numbers of the next step, unless that step has begun.
    pub fn begin_step(&mut self) {
        if let (Some(seed), false) = (self.options.seed, self.accumulated.seeded) {
            self.accumulated.seeded = true;
            let rank = mix(seed, 1 + self.group.rank() as u64);
            let step = mix(rank, 1 + self.steps as u64);
            self.device.seed(step);
            self.random = Some(random_stream(step));
        }
    }

    /// Computes one batch with `run`, which computes with [copies](BatchScope::copy) of `module`.
    ///
    /// # Errors
    /// If `run` fails, the group fails, the device cannot be read, or a value is not finite.
    pub fn batch<M: Module, B>(
        &mut self,
        module: &M,
        batch: ShardedBatch<B>,
        run: impl FnOnce(&mut BatchScope<'_>, B) -> Result<BatchOutput>,
    ) -> Result<ComputedBatch> {
        self.begin_step();
        let ShardedBatch { item, samples, global_samples, last } = batch;
        // The samples over which gradients are averaged.
        let averaged = if self.options.local_sgd.is_some() { samples } else { global_samples };
        self.accumulated.batches += 1;
        self.accumulated.samples += global_samples;
        self.accumulated.averaged += averaged;
        let (precision, loss_scale) = (self.options.reducer.precision, self.reducer.loss_scale());
        let context = BatchContext::new(samples, averaged, loss_scale);
        let state = self.reducer.scaler_state().map(|(scale, _)| scale);
        let is_complete = last || self.accumulated.batches >= self.options.grad_accum_steps;
        let step = is_complete.then(|| self.reducer.step(samples, self.accumulated.averaged));
        let mut scope = BatchScope { context, precision, random: self.random.as_mut(), step: step.as_ref() };
        let output = info_span!("forward and backward").in_scope(|| run(&mut scope, item))?;
        let scaled = scope.context.scaled;
        let of_batch = masked(output.totals, samples).cast(FloatDType::F32);
        let own = match self.accumulated.own.take() {
            Some(sum) => sum + of_batch.clone(),
            None => of_batch.clone(),
        };
        let Some(mut step) = step else {
            self.accumulated.own = Some(own);
            self.reducer.accumulate(output.grads, module, samples);
            return Ok(ComputedBatch { own: of_batch, step: None });
        };
        step.context.scaled = scaled;
        let Accumulated { batches, samples: all, averaged, .. } = std::mem::take(&mut self.accumulated);
        let FinishedStep { grads, totals, flags } =
            step.finish_with(output.grads, module, Some(own.clone()), output.flags, false)?;
        let totals = totals.unwrap_or_else(|| own.clone());
        self.steps += 1;
        // Values on the host are checked before the optimizer uses the gradients, others later.
        if is_flex(&totals.device()) {
            self.check_loss(self.steps, &own, first(&read(totals.clone())?))?;
        }
        let (grads, norm) = self.clip(grads, module)?;
        let loss = Loss::start(totals, norm, averaged, true)?;
        let unchecked = UncheckedStep { number: self.steps, own, flags, loss };
        let step = SynchronisedStep { grads, unchecked, samples: all, batches, loss_scale: state };
        Ok(ComputedBatch { own: of_batch, step: Some(step) })
    }

    fn clip<M: Module>(
        &self,
        grads: GradientsParams,
        module: &M,
    ) -> Result<(GradientsParams, Option<Tensor<1>>)> {
        let Some(max_norm) = self.options.clip_grad_norm else { return Ok((grads, None)) };
        let (grads, norm) = self.reducer.clip(grads, module, max_norm)?;
        match norm {
            Norm::Host(norm) => self.check_norm(self.steps, norm).map(|()| (grads, None)),
            Norm::Device(norm) => Ok((grads, Some(*norm))),
        }
    }

    /// Waits for the values of a step, and verifies that they are finite and that the ranks agree on the step. Returns the
    /// sums of the flags, and the totals.
    ///
    /// # Errors
    /// [`Error::NonFinite`], or if the group or a device fails.
    pub fn check(&mut self, step: UncheckedStep) -> Result<(Vec<f32>, Vec<f64>)> {
        let UncheckedStep { number, own, flags, loss } = step;
        // First, because an absent rank is detected on the host.
        let flags = self.reducer.settle(flags)?;
        let mut values = loss.read()?.into_iter();
        // A sum that could not be started has failed the group.
        self.group.failure().map_or(Ok(()), Err)?;
        let totals = values.next().unwrap_or_default();
        self.check_loss(number, &own, first(&totals))?;
        values.next().map_or(Ok(()), |norm| self.check_norm(number, first(&norm)))?;
        Ok((flags, totals))
    }

    /// Fails on every rank if the loss over all ranks is NaN or infinite.
    ///
    /// The ranks communicate only in that case, to find those whose own loss is not finite. With local SGD, only this
    /// rank fails.
    ///
    /// # Errors
    /// [`Error::NonFinite`], or if the group fails.
    fn check_loss(&self, step: usize, own: &Tensor<1>, all: f64) -> Result<()> {
        if all.is_finite() || self.options.allow_non_finite {
            return Ok(());
        }
        let ranks = match self.options.local_sgd {
            Some(_) => vec![self.group.members()[self.group.rank()]],
            None => {
                let finite = self.group.all_gather(&[u8::from(first(&read(own.clone())?).is_finite())])?;
                let ranks = finite.iter().zip(self.group.members()).filter(|(finite, _)| finite[0] == 0);
                ranks.map(|(_, rank)| *rank).collect()
            }
        };
        Err(Error::NonFinite { what: "training loss".into(), value: all.to_string(), step, ranks })
    }

    /// Fails on every rank if the norm of the averaged gradients is not finite.
    ///
    /// The norm is bit-identical on all ranks.
    ///
    /// # Errors
    /// [`Error::NonFinite`].
    fn check_norm(&self, step: usize, norm: f64) -> Result<()> {
        if norm.is_finite() || self.options.allow_non_finite {
            return Ok(());
        }
        let (what, value) = ("norm of the gradients".into(), norm.to_string());
        Err(Error::NonFinite { what, value, step, ranks: Vec::new() })
    }
}

/// Sums over samples; zeros for padding, whose values may be NaN.
pub(crate) fn masked(totals: Tensor<1>, samples: usize) -> Tensor<1> {
    if samples == 0 { totals.zeros_like() } else { totals }
}

/// Copies the values of a small tensor to the host.
fn read(tensor: Tensor<1>) -> Result<Vec<f64>> {
    Ok(Readback::start(vec![tensor])?.wait()?.concat())
}

/// The first of a step's totals, which is the loss.
pub(crate) fn first(totals: &[f64]) -> f64 {
    totals.first().copied().unwrap_or(0.0)
}
