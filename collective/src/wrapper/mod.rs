//! Wrappers of modules for data-parallel training in a custom training loop.

mod data_parallel;
mod distributed;
pub(crate) mod engine;
mod loss;
mod options;

pub use data_parallel::DataParallel;
pub use distributed::DistributedDataParallel;
pub use loss::Loss;
pub use options::StepOptions;
pub(crate) use options::or_none;

use crate::{Result, data_parallel::Scatter, loader::ShardedBatch, precision::backward};
use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer, lr_scheduler::module_lr_scheduler::ModuleLearningRate};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use engine::{BatchSize, ComputedBatch, Engine, SynchronisedStep};
use serde::{Deserialize, Serialize};

/// Common interface of [`DistributedDataParallel`] and [`DataParallel`].
pub trait ParallelModule<M: Module> {
    /// Runs forward and backward over a batch.
    ///
    /// `loss` returns the mean loss `[1]` over the samples of its part, in any float type. In 16 bits, it receives
    /// parameters and a batch of that type.
    ///
    /// # Errors
    /// If a rank, a replica, the group or a device fails, or the loss is not finite.
    fn backward<B: Scatter>(
        &mut self,
        batch: ShardedBatch<B>,
        loss: impl Fn(&M, B) -> Tensor<1> + Send + Sync + 'static,
    ) -> Result<(Loss, StepGradients)>;

    /// Makes an optimizer step, unless the gradients are only accumulated.
    ///
    /// # Errors
    /// If a device failed. The current implementations report that when a value is read.
    fn step(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: impl Into<ModuleLearningRate>,
        gradients: StepGradients,
    ) -> Result<()>;

    /// The module.
    fn module(&self) -> &M;
}

/// Gradients of a step for the optimizer, averaged over all ranks, unscaled and clipped.
#[must_use = "pass them to `step`"]
#[derive(Debug)]
pub struct StepGradients {
    grads: Option<GradientsParams>,
    skipped: bool,
}

impl StepGradients {
    /// The gradients; `None` if they are only accumulated. Empty if the step is skipped.
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

/// A module with its engine, which both wrappers contain.
struct Wrapped<M> {
    module: M,
    engine: Engine,
    /// The last step whose values are not checked: its number, this rank's totals, and the loss.
    unchecked: Option<(usize, Tensor<1>, Loss)>,
}

impl<M: Module> Wrapped<M> {
    /// Converts the result of a batch of `samples` on this rank.
    fn results(&mut self, computed: ComputedBatch, samples: usize) -> Result<(Loss, StepGradients)> {
        let Some(step) = computed.step else {
            let loss = Loss::start(computed.own, None, samples, false)?;
            return Ok((loss, StepGradients { grads: None, skipped: false }));
        };
        let SynchronisedStep { grads, own, totals, norm, samples, skipped, .. } = step;
        let loss = Loss::start(totals, norm, samples, true)?;
        let gradients = StepGradients { grads: Some(grads), skipped };
        let earlier = self.unchecked.take();
        self.unchecked = (!loss.is_ready()).then(|| (self.engine.steps, own, loss.clone()));
        self.check(earlier)?;
        Ok((loss, gradients))
    }

    fn step(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: impl Into<ModuleLearningRate>,
        gradients: StepGradients,
    ) {
        if let Some(grads) = gradients.grads {
            self.module = optimizer.step(lr, self.module.clone(), grads);
        }
    }

    /// Waits for the values of a step and verifies that they are finite.
    fn check(&self, step: Option<(usize, Tensor<1>, Loss)>) -> Result<()> {
        let Some((step, own, loss)) = step else { return Ok(()) };
        let (sum, norm) = loss.read()?;
        self.engine.check_loss(step, &own, sum)?;
        norm.map_or(Ok(()), |norm| self.engine.check_norm(step, norm))
    }

    /// Waits for the last step and checks it.
    fn finish(&mut self) -> Result<()> {
        let last = self.unchecked.take();
        self.check(last)
    }

    fn state(&self) -> StepState {
        StepState { steps: self.engine.steps, loss_scale: self.engine.reducer.scaler_state() }
    }

    fn load_state(&mut self, state: StepState) {
        self.engine.steps = state.steps;
        self.engine.reducer.restore_scaler(state.loss_scale);
    }
}

fn size_of<B>(batch: &ShardedBatch<B>) -> BatchSize {
    BatchSize { samples: batch.samples, global_samples: batch.global_samples, last: batch.last }
}

/// Gradients of a mean loss in f32 for `net`, and the loss without a graph.
pub(crate) fn gradients<M: Module>(net: &M, loss: Tensor<1>) -> (GradientsParams, Tensor<1>) {
    let loss = match loss.dtype() {
        DType::F32 => loss,
        _ => loss.cast(FloatDType::F32),
    };
    let grads = GradientsParams::from_grads(backward(&loss), net);
    (grads, loss.inner())
}

/// The device of `module`, with autodiff.
fn device_of<M: Module>(module: &M) -> Device {
    let device = module.devices().into_iter().next().unwrap_or_default();
    if device.is_autodiff() { device } else { device.autodiff() }
}
