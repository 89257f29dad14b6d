//! Wrappers of modules for data-parallel training in a custom training loop.

mod data_parallel;
mod distributed;
pub(crate) mod engine;
pub mod local_sgd;
mod loss;
mod options;

pub use data_parallel::DataParallel;
pub use distributed::DistributedDataParallel;
pub use loss::Loss;
pub use options::StepOptions;
pub(crate) use options::or_none;

use crate::{
    ProcessGroup, Result,
    batch_scope::gradients,
    data::loader::ShardedBatch,
    dp::{Replicas, Scatter, cast},
    module_state,
};
use burn::module::Module;
use burn::optim::{
    GradientsParams, ModuleOptimizer, OptimizerRecord, lr_scheduler::module_lr_scheduler::ModuleLearningRate,
};
use burn::tensor::Tensor;
use engine::{BatchOutput, ComputedBatch, Engine, SynchronisedStep, UncheckedStep};
use kernels::optim::together;
use local_sgd::OuterOptimizer;
use serde::{Deserialize, Serialize};
use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

/// A module in data-parallel training: a [`DistributedDataParallel`] or a [`DataParallel`], which dereference to it.
///
/// A training loop over a `ParallelModule<M>` serves both, which convert into it.
pub struct ParallelModule<M> {
    module: M,
    engine: Engine,
    /// The outer optimizer of local SGD.
    outer: Option<OuterOptimizer>,
    /// The replicas on the devices of this process; `None` for [`DistributedDataParallel`].
    replicas: Option<Replicas<M>>,
    /// The last step whose values are not checked.
    unchecked: Option<UncheckedStep>,
}

impl<M: Module + 'static> ParallelModule<M> {
    /// Runs forward and backward over this rank's part of a global batch, in parts on the devices of the process.
    ///
    /// Averages the gradients over the global batch. `loss` returns the mean loss `[1]` over the samples of its part, in
    /// any float type. In 16 bits, it receives parameters and a batch of that type, and casts the outputs to f32 if the
    /// loss is to be computed in f32. Every rank must call it for each of its batches, including padding.
    ///
    /// With [`StepOptions::grad_accum_steps`], only the last batch of a step communicates; earlier gradients are
    /// accumulated.
    ///
    /// # Errors
    /// If a rank, a replica, the group or a device fails, or the loss over all ranks is not finite: of this step on a
    /// CPU, of the previous step on a GPU.
    pub fn backward<B: Scatter>(
        &mut self,
        batch: ShardedBatch<B>,
        loss: impl Fn(&M, B) -> Tensor<1> + Send + Sync + 'static,
    ) -> Result<(Loss, StepGradients)> {
        let Self { module, engine, replicas: Some(replicas), .. } = self else {
            return self.backward_here(batch, loss);
        };
        let (samples, loss) = (batch.samples, Arc::new(loss));
        let computed = engine.batch(module, batch, |scope, item| {
            let (grads, loss) = replicas.gradients(module, item, scope, &loss)?;
            let totals = loss.mul_scalar(samples as f32);
            Ok(BatchOutput { grads, totals, flags: Vec::new() })
        })?;
        self.results(computed, samples)
    }

    /// [`backward`](Self::backward) on this thread and device.
    fn backward_here<B: Scatter>(
        &mut self,
        batch: ShardedBatch<B>,
        loss: impl FnOnce(&M, B) -> Tensor<1>,
    ) -> Result<(Loss, StepGradients)> {
        let samples = batch.samples;
        let computed = self.engine.batch(&self.module, batch, |scope, item| {
            let (net, item) = (scope.copy(&self.module, scope.precision), cast(item, scope.precision));
            let (grads, loss) = scope.enter(|| gradients(&net, loss(&net, item)));
            let totals = loss.mul_scalar(samples as f32);
            Ok(BatchOutput { grads, totals, flags: Vec::new() })
        })?;
        self.results(computed, samples)
    }

    /// Converts the result of a batch of `samples` on this rank.
    fn results(&mut self, computed: ComputedBatch, samples: usize) -> Result<(Loss, StepGradients)> {
        let Some(step) = computed.step else {
            let loss = Loss::start(computed.own, None, samples, false)?;
            return Ok((loss, StepGradients { grads: None, skipped: false }));
        };
        let SynchronisedStep { grads, unchecked, .. } = step;
        let loss = unchecked.loss.clone();
        let unchecked = (!unchecked.is_checked()).then_some(unchecked);
        if let Some(earlier) = std::mem::replace(&mut self.unchecked, unchecked) {
            self.engine.check(earlier)?;
        }
        Ok((loss, StepGradients { grads: Some(grads), skipped: self.engine.reducer.skipped() }))
    }

    /// Makes an optimizer step with learning rate `lr`, unless the gradients are only accumulated.
    ///
    /// With [`shard_optimizer`](crate::gradient::ReducerOptions::shard_optimizer), the optimizer updates this rank's
    /// shard of the parameters, and the others are received from their ranks. With
    /// [`local_sgd`](StepOptions::local_sgd), the ranks synchronise after every [`sync_every`](crate::ddp::local_sgd::LocalSgd)
    /// steps.
    ///
    /// # Errors
    /// With a sharded optimizer or local SGD, if the group fails. Device errors are returned by the call that reads a value.
    pub fn step(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: impl Into<ModuleLearningRate>,
        gradients: StepGradients,
    ) -> Result<()> {
        if let Some(grads) = gradients.grads {
            let module = self.module.clone();
            let module = together(|| optimizer.step(lr, module, grads));
            self.module = match &mut self.outer {
                Some(outer) => outer.after_step(module)?,
                None if gradients.skipped => module,
                None => self.engine.reducer.share_parameters(module)?,
            };
        }
        Ok(())
    }

    /// The optimizer's whole state for a checkpoint, on rank 0; arbitrary on the other ranks.
    ///
    /// Every rank must call it. A sharded optimizer's state is collected from all ranks.
    ///
    /// # Errors
    /// If the group fails, or the state cannot be packed.
    pub fn consolidate(&self, optimizer: &ModuleOptimizer) -> Result<OptimizerRecord> {
        self.engine.reducer.consolidate(optimizer.to_record())
    }

    /// Returns `optimizer`, which has the whole state of a checkpoint, with the state of this rank's shard only.
    ///
    /// # Errors
    /// If the state cannot be packed.
    pub fn keep_shard(&self, optimizer: ModuleOptimizer) -> Result<ModuleOptimizer> {
        if !self.engine.reducer.is_sharded() {
            return Ok(optimizer);
        }
        let shard = self.engine.reducer.keep_shard(optimizer.to_record())?;
        Ok(optimizer.load_record(shard))
    }

    /// The outer optimizer of [`local_sgd`](StepOptions::local_sgd), whose state belongs into checkpoints.
    pub fn outer_optimizer(&mut self) -> Option<&mut OuterOptimizer> {
        self.outer.as_mut()
    }

    /// [`Reducer::shard_sizes`](crate::gradient::Reducer::shard_sizes).
    pub fn shard_sizes(&self) -> &[usize] {
        self.engine.reducer.shard_sizes()
    }

    /// The module on this rank's first device, for checkpoints and for reading parameters.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// A copy for inference, without autodiff, dropout and batch statistics.
    pub fn valid(&self) -> M {
        self.module.valid()
    }

    /// Waits for the last step and verifies that all ranks hold the same parameters. With local SGD, the ranks synchronise
    /// first, if they have not since the last step.
    ///
    /// Copies rank 0's buffers, such as BatchNorm's running statistics, to all ranks, and returns the module's digest.
    /// Every rank must call it, for instance at the end of an epoch.
    ///
    /// # Errors
    /// [`Error::Diverged`](crate::Error::Diverged) naming the ranks whose parameters differ,
    /// [`Error::NonFinite`](crate::Error::NonFinite) for the last step, or if the group or the device fails.
    pub fn synchronize(&mut self) -> Result<String> {
        if let Some(last) = self.unchecked.take() {
            self.engine.check(last)?;
        }
        if let Some(outer) = self.outer.as_mut().filter(|outer| outer.has_steps()) {
            self.module = outer.synchronize(self.module.clone())?;
        }
        let when = format!("after step {}", self.engine.steps);
        let (module, digest) =
            module_state::verify_and_share_buffers(self.module.clone(), &self.engine.group, 0, &when)?;
        self.module = module;
        Ok(digest)
    }

    /// The state for a checkpoint, besides the module and the optimizer. Equal on all ranks.
    pub fn state(&self) -> StepState {
        StepState { steps: self.engine.steps, loss_scale: self.engine.reducer.scaler_state() }
    }

    /// Restores the state from a checkpoint.
    pub fn load_state(&mut self, state: StepState) {
        self.engine.steps = state.steps;
        self.engine.reducer.restore_scaler(state.loss_scale);
    }

    /// The reason why overlap is disabled although it was requested, if it is.
    pub fn fallback(&self) -> Option<&str> {
        self.engine.reducer.fallback()
    }

    /// Parameters that not all ranks with samples used in the last step, with the number of ranks that did.
    pub fn unused(&self) -> impl Iterator<Item = (&str, usize)> {
        self.engine.reducer.unused()
    }

    /// The process group; that of one rank for [`DataParallel`].
    pub fn group(&self) -> &ProcessGroup {
        &self.engine.group
    }
}

impl<M> Deref for ParallelModule<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.module
    }
}

/// Makes a wrapper dereference to its [`ParallelModule`] and convert into it.
macro_rules! wrapper {
    ($wrapper:ident) => {
        impl<M> $wrapper<M> {
            /// The module, without the wrapper.
            pub fn into_inner(self) -> M {
                self.0.module
            }
        }

        impl<M> From<$wrapper<M>> for ParallelModule<M> {
            fn from(wrapper: $wrapper<M>) -> Self {
                wrapper.0
            }
        }

        impl<M> Deref for $wrapper<M> {
            type Target = ParallelModule<M>;

            fn deref(&self) -> &ParallelModule<M> {
                &self.0
            }
        }

        impl<M> DerefMut for $wrapper<M> {
            fn deref_mut(&mut self) -> &mut ParallelModule<M> {
                &mut self.0
            }
        }
    };
}

wrapper!(DataParallel);
wrapper!(DistributedDataParallel);

/// Gradients of a step for the optimizer, averaged over all ranks, unscaled and clipped.
#[must_use = "pass them to `step`"]
#[derive(Debug)]
pub struct StepGradients {
    grads: Option<GradientsParams>,
    skipped: bool,
}

impl StepGradients {
    /// The gradients; `None` if they are only accumulated. Empty if the step is skipped. With a sharded optimizer,
    /// those of this rank's shard.
    pub fn get(&self) -> Option<&GradientsParams> {
        self.grads.as_ref()
    }

    /// Whether the batch was only accumulated.
    pub fn is_accumulated(&self) -> bool {
        self.grads.is_none()
    }

    /// Whether gradients overflowed f16, so that the step is skipped with a smaller loss scale.
    pub fn is_skipped(&self) -> bool {
        self.skipped
    }
}

/// State of a wrapper that a checkpoint needs besides the module and the optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepState {
    /// Number of finished optimizer steps.
    pub steps: usize,
    /// Loss scale and the steps since it last changed, for f16.
    pub loss_scale: Option<(f32, u32)>,
}
