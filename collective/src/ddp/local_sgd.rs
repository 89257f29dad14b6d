//! Local SGD and DiLoCo: ranks make optimizer steps on their own, and synchronise their parameters periodically.
//!
//! Every rank trains on its part of each global batch, without communication. After
//! [`sync_every`](LocalSgd::sync_every) steps, the differences between the parameters at the last synchronisation, θ, and
//! those of each rank, θᵢ, are averaged over the ranks and used as the gradient of an outer optimizer, SGD with Nesterov
//! momentum:
//!
//! ```text
//! Δ ← mean of (θ − θᵢ)        v ← μ v + Δ        θ ← θ − η (Δ + μ v)
//! ```
//!
//! With [`overlap`](LocalSgd::overlap), the ranks train on while the differences are averaged, and each then continues
//! with the mean of its parameters and θ (Douillard et al. 2025, "Streaming DiLoCo", arXiv 2501.18512, with α = ½ and all
//! parameters at once).
//!
//! With η = 1 and μ = 0, the parameters are averaged (Stich 2018, "Local SGD Converges Fast and Communicates Little",
//! arXiv 1805.09767). With η = 0.7 and μ = 0.9 it is DiLoCo (Douillard et al. 2023, arXiv 2311.08105). The state of the
//! ranks' own optimizers is not exchanged.

use crate::{
    Error, ProcessGroup, Result, StepOptions,
    gradient::{LaunchedReduction, Reducer, ReducerOptions},
    parameters::{TensorMap, put, take, values, with_values},
    precision::Precision,
};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::store::ModuleRecord;
use burn::tensor::Tensor;
use std::fmt;

/// Options of local SGD.
///
/// ```
/// use burn_ddp_collective::{StepOptions, local_sgd::LocalSgd};
///
/// let options = StepOptions { local_sgd: Some(LocalSgd::diloco(500)), ..StepOptions::default() };
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalSgd {
    /// Optimizer steps of each rank between two synchronisations, at least 1.
    pub sync_every: usize,
    /// Learning rate of the outer optimizer, above 0.
    pub outer_lr: f64,
    /// Nesterov momentum of the outer optimizer, from 0 to below 1.
    pub outer_momentum: f64,
    /// Optimizer steps of each rank during the exchange, less than `sync_every`; 0 waits for it.
    pub overlap: usize,
}

/// Weight of a rank's parameters in the mean with those of the outer optimizer, after steps during the exchange.
const OWN_WEIGHT: f64 = 0.5;

impl LocalSgd {
    /// Averages the parameters every `sync_every` steps.
    pub fn averaging(sync_every: usize) -> Self {
        Self { sync_every, outer_lr: 1.0, outer_momentum: 0.0, overlap: 0 }
    }

    /// DiLoCo with its published outer learning rate 0.7 and momentum 0.9.
    pub fn diloco(sync_every: usize) -> Self {
        Self { outer_lr: 0.7, outer_momentum: 0.9, ..Self::averaging(sync_every) }
    }

    /// Verifies the values, and that `options` can be used without synchronisation in every step.
    pub(crate) fn check(&self, options: &StepOptions) -> Result<()> {
        let Self { sync_every, outer_lr, outer_momentum, overlap } = *self;
        let refused = if sync_every == 0 {
            "sync_every is 0; the least is 1".into()
        } else if !(outer_lr.is_finite() && outer_lr > 0.0) {
            format!("outer_lr is {outer_lr}; it must be above 0")
        } else if !(0.0..1.0).contains(&outer_momentum) {
            format!("outer_momentum is {outer_momentum}; it must be from 0 to below 1")
        } else if overlap >= sync_every {
            format!("overlap is {overlap}; it must be less than sync_every, {sync_every}")
        } else if options.sync_batch_norm {
            "SyncBatchNorm exchanges statistics in every step; turn off sync_batch_norm".into()
        } else if options.reducer.shard_optimizer {
            "every rank needs the whole optimizer; turn off shard_optimizer".into()
        } else if options.reducer.precision == Precision::F16 {
            "ranks would have different loss scales; use bf16 or f32".into()
        } else {
            return Ok(());
        };
        Err(Error::Invalid(format!("local SGD: {refused}")))
    }
}

impl fmt::Display for LocalSgd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sync_every, outer_lr, outer_momentum, overlap } = self;
        write!(f, "every {sync_every} steps, outer learning rate {outer_lr}, momentum {outer_momentum}")?;
        if *overlap > 0 { write!(f, ", {overlap} steps during the exchange") } else { Ok(()) }
    }
}

/// The outer optimizer, for a training loop in which every rank makes optimizer steps on its own.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::Device;
/// use burn_ddp_collective::{ProcessGroup, local_sgd::{LocalSgd, OuterOptimizer}, gradient::ReducerOptions};
///
/// let model: Linear = LinearConfig::new(3, 2).init(&Device::flex().autodiff());
/// let options = LocalSgd::averaging(2);
/// let mut outer = OuterOptimizer::new(&model, &ProcessGroup::solo(), options, ReducerOptions::default())?;
/// let mut model = model;
/// for _ in 0..4 {
///     // … forward, backward and an optimizer step of this rank's batch …
///     model = outer.after_step(model)?;
/// }
/// model = outer.synchronize(model)?;
/// # Ok::<(), burn_ddp_collective::Error>(())
/// ```
pub struct OuterOptimizer {
    options: LocalSgd,
    /// Parameters at the last synchronisation, θ.
    start: TensorMap,
    /// v; empty before the first step and without momentum.
    velocity: TensorMap,
    /// Averages the differences, with the buckets and the hook of gradients.
    pub(crate) reducer: Reducer,
    ranks: usize,
    /// Optimizer steps since the last synchronisation or the start of the exchange.
    steps: usize,
    in_progress: Option<LaunchedReduction>,
}

/// What follows an optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundPhase {
    /// The next step.
    Training,
    /// [`OuterOptimizer::synchronize`].
    IsOver,
    /// [`OuterOptimizer::start`].
    Starts,
    /// [`OuterOptimizer::finish`].
    HasArrived,
}

impl OuterOptimizer {
    /// Creates the optimizer. `model` has equal parameters on all ranks, and every rank must call it.
    ///
    /// The buckets and the communication hook of `exchange` apply to the averaged differences.
    ///
    /// # Errors
    /// If the group fails.
    pub fn new<M: Module>(
        model: &M,
        group: &ProcessGroup,
        options: LocalSgd,
        exchange: ReducerOptions,
    ) -> Result<Self> {
        let exchange =
            ReducerOptions { overlap: false, precision: Precision::F32, shard_optimizer: false, ..exchange };
        Ok(Self {
            options,
            start: values(model, true).into_iter().collect(),
            velocity: TensorMap::new(),
            reducer: Reducer::new(model, group, exchange)?,
            ranks: group.world_size(),
            steps: 0,
            in_progress: None,
        })
    }

    /// Counts an optimizer step, and synchronises the ranks if it is due. Returns `model` with the parameters for the
    /// next step.
    ///
    /// Every rank must call it after each of its steps. Buffers such as BatchNorm's statistics are kept.
    ///
    /// # Errors
    /// If the group or a device fails.
    pub fn after_step<M: Module>(&mut self, model: M) -> Result<M> {
        match self.count_step() {
            RoundPhase::Training => Ok(model),
            RoundPhase::IsOver => self.synchronize(model),
            RoundPhase::Starts => self.start(&model, Vec::new()).map(|()| model),
            RoundPhase::HasArrived => Ok(self.finish(model)?.0),
        }
    }

    /// Counts an optimizer step, and returns what follows it.
    pub(crate) fn count_step(&mut self) -> RoundPhase {
        self.steps += 1;
        match self.options {
            LocalSgd { overlap, .. } if self.in_progress.is_some() && self.steps == overlap => {
                RoundPhase::HasArrived
            }
            LocalSgd { sync_every, .. } if self.steps < sync_every => RoundPhase::Training,
            LocalSgd { overlap: 0, .. } => RoundPhase::IsOver,
            LocalSgd { .. } => RoundPhase::Starts,
        }
    }

    /// Whether this rank has made an optimizer step since the last synchronisation, or an exchange is in progress.
    pub(crate) fn has_steps(&self) -> bool {
        self.steps > 0 || self.in_progress.is_some()
    }

    /// Makes a step of the outer optimizer. Returns `model` with parameters that are equal on all ranks.
    ///
    /// Every rank must call it after the same step, at the end of training and before a checkpoint. An exchange in
    /// progress is finished before. Buffers such as BatchNorm's statistics are kept.
    ///
    /// # Errors
    /// If the group or a device fails.
    pub fn synchronize<M: Module>(&mut self, model: M) -> Result<M> {
        let model = if self.in_progress.is_some() { self.finish(model)?.0 } else { model };
        self.start(&model, Vec::new())?;
        self.update(&model)?;
        Ok(with_values(model, &self.start))
    }

    /// Starts to average the differences of the parameters of `model`, and to sum `flags` over all ranks.
    pub(crate) fn start<M: Module>(&mut self, model: &M, flags: Vec<f32>) -> Result<()> {
        let difference = |(id, now): (_, Tensor<1>)| Some((id, self.start.get(&id)?.clone() - now));
        let differences = values(model, true).into_iter().filter_map(difference).collect();
        let mut grads = GradientsParams::new();
        put(&mut grads, differences, model);
        self.in_progress = Some(self.reducer.step(1, self.ranks).launch(grads, model, flags)?);
        self.steps = 0;
        Ok(())
    }

    /// Makes a step of the outer optimizer with the exchange in progress. Returns `model` with the mean of its parameters
    /// and the new ones, and the sums of the flags.
    pub(crate) fn finish<M: Module>(&mut self, model: M) -> Result<(M, Vec<f32>)> {
        let flags = self.update(&model)?;
        let mean = |(id, own): (_, Tensor<1>)| {
            let new = self.start.get(&id)?.clone();
            Some((id, new.clone() + (own - new).mul_scalar(OWN_WEIGHT)))
        };
        let means = values(&model, true).into_iter().filter_map(mean).collect();
        Ok((with_values(model, &means), flags))
    }

    /// Waits for the exchange in progress, and updates θ and v. Returns the sums of the flags.
    fn update<M: Module>(&mut self, model: &M) -> Result<Vec<f32>> {
        let LocalSgd { outer_lr, outer_momentum, .. } = self.options;
        let Some(launched) = self.in_progress.take() else { return Ok(Vec::new()) };
        let (mut grads, flags) = self.reducer.complete(launched, model)?;
        for (id, mut step) in take(&mut grads, model) {
            if outer_momentum > 0.0 {
                let velocity = match self.velocity.remove(&id) {
                    Some(velocity) => velocity.mul_scalar(outer_momentum) + step.clone(),
                    None => step.clone(),
                };
                step = step + velocity.clone().mul_scalar(outer_momentum);
                self.velocity.insert(id, velocity);
            }
            self.start.entry(id).and_modify(|start| *start = start.clone() - step.mul_scalar(outer_lr));
        }
        Ok(flags)
    }

    /// The state for a checkpoint, equal on all ranks: a record of `model` with the velocities as parameters.
    pub fn to_record<M: Module>(&self, model: M) -> ModuleRecord {
        let velocity = |(id, value): (_, Tensor<1>)| {
            let velocity = self.velocity.get(&id).cloned();
            (id, velocity.unwrap_or_else(|| value.zeros_like()))
        };
        let velocities = values(&model, true).into_iter().map(velocity).collect();
        with_values(model, &velocities).into_record()
    }

    /// Restores the state of a checkpoint. `model` has the checkpoint's parameters.
    ///
    /// # Errors
    /// If the state is that of another model.
    pub fn load_record<M: Module>(&mut self, model: M, record: ModuleRecord) -> Result<()> {
        let loaded = model.try_load_record(record).map_err(|error| {
            Error::Invalid(format!("the outer optimizer's state does not fit the model: {error}"))
        })?;
        self.velocity = values(&loaded, true).into_iter().collect();
        Ok(())
    }
}
