//! `DistributedDataParallel`: a replica of a module on every rank.

use super::{
    Loss, ParallelModule, StepGradients, StepOptions, StepState, Wrapped, device_of,
    engine::{BatchOutput, Engine},
    gradients, size_of,
};
use crate::{
    ProcessGroup, Result,
    data_parallel::{Scatter, split::cast},
    loader::ShardedBatch,
    module_state,
    sync_batch_norm::convert_sync_batch_norm,
};
use burn::module::Module;
use burn::optim::{ModuleOptimizer, lr_scheduler::module_lr_scheduler::ModuleLearningRate};
use burn::tensor::Tensor;
use std::ops::Deref;

/// A module that is trained on all ranks of a process group, as PyTorch's `DistributedDataParallel`.
///
/// Every rank holds a replica on its own device and computes its part of each global batch. Gradients are averaged
/// over the global batch during backward, so that all replicas make the same optimizer step. On a single device,
/// use [`ProcessGroup::solo`].
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::SgdConfig;
/// use burn::tensor::{Device, Tensor};
/// use collective::{DistributedDataParallel, ProcessGroup, loader::ShardedBatch};
///
/// let device = Device::flex().autodiff();
/// let net: Linear = LinearConfig::new(3, 1).init(&device);
/// let mut model = DistributedDataParallel::new(net, &ProcessGroup::solo())?;
/// let mut optimizer = SgdConfig::new().init();
/// for _ in 0..3 {
///     let batch = ShardedBatch::whole(Tensor::<2>::ones([4, 3], &device), 4);
///     let (loss, gradients) = model.backward(batch, |net, x| net.forward(x).powi_scalar(2).mean())?;
///     model.step(&mut optimizer, 0.1, gradients)?;
///     println!("{}", loss.mean()?);
/// }
/// # Ok::<(), collective::Error>(())
/// ```
pub struct DistributedDataParallel<M> {
    inner: Wrapped<M>,
}

impl<M: Module> DistributedDataParallel<M> {
    /// Wraps `module`, which is on this rank's device, with default options.
    ///
    /// Copies rank 0's parameters and buffers to all ranks. Every rank must call it, on the training thread.
    ///
    /// # Errors
    /// [`Error::NotTrainable`](crate::Error::NotTrainable) for a module without autodiff, or if the ranks' modules
    /// differ in structure, or the group fails.
    pub fn new(module: M, group: &ProcessGroup) -> Result<Self> {
        Self::with_options(module, group, StepOptions::default())
    }

    /// Wraps `module` with `options`, which must be equal on all ranks.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), and if an option differs between ranks, the device does not support the precision,
    /// or a `burn::nn::BatchNorm` cannot be synchronised.
    pub fn with_options(module: M, group: &ProcessGroup, options: StepOptions) -> Result<Self> {
        group.verify_settings(&options.settings())?;
        let device = device_of(&module);
        options.reducer.precision.check(&device)?;
        module_state::initialize(&module);
        let module = module.fork(&device);
        let mut module = module_state::broadcast(module, group, 0)?;
        if options.sync_batch_norm {
            // A separate group, so that statistics never wait behind gradients.
            module = convert_sync_batch_norm(module, &group.duplicate("SyncBatchNorm")?)?;
        }
        let engine = Engine::new(&module, group, &device, options)?;
        Ok(Self { inner: Wrapped { module, engine, unchecked: None } })
    }

    /// Runs forward and backward over this rank's part of a global batch.
    ///
    /// Averages the gradients over all ranks. `loss` returns the mean loss `[1]` over the samples of its batch, in
    /// any float type. In 16 bits, it receives parameters and a batch of that type, and casts the outputs to f32 if the
    /// loss is to be computed in f32. Every rank must call it for each of its batches, including padding.
    ///
    /// With [`StepOptions::grad_accum_steps`], only the last batch of a step communicates; earlier gradients are
    /// accumulated.
    ///
    /// # Errors
    /// If the group or the device fails, or the loss over all ranks is not finite: of this step on a CPU, of the
    /// previous step on a GPU.
    pub fn backward<B: Scatter>(
        &mut self,
        batch: ShardedBatch<B>,
        loss: impl FnOnce(&M, B) -> Tensor<1>,
    ) -> Result<(Loss, StepGradients)> {
        let (size, item) = (size_of(&batch), batch.item);
        let Wrapped { module, engine, .. } = &mut self.inner;
        let computed = engine.batch(module, size, |copies, scope| {
            let (net, item) = (&copies.net, cast(item, scope.precision));
            let (grads, loss) = scope.enter(|| gradients(net, loss(net, item)));
            let totals = loss.mul_scalar(size.samples as f32);
            Ok(BatchOutput { grads, totals, flags: Vec::new() })
        })?;
        self.inner.results(computed, size.samples)
    }

    /// Makes an optimizer step with learning rate `lr`, unless the gradients are only accumulated.
    ///
    /// # Errors
    /// Currently none: device errors are returned by the call that reads a value.
    pub fn step(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: impl Into<ModuleLearningRate>,
        gradients: StepGradients,
    ) -> Result<()> {
        self.inner.step(optimizer, lr, gradients);
        Ok(())
    }

    /// The module, for checkpoints and for reading parameters.
    pub fn module(&self) -> &M {
        &self.inner.module
    }

    /// The module, without the wrapper.
    pub fn into_inner(self) -> M {
        self.inner.module
    }

    /// A copy for inference, without autodiff, dropout and batch statistics.
    pub fn valid(&self) -> M {
        self.inner.module.valid()
    }

    /// Waits for the last step and verifies that all ranks hold the same parameters.
    ///
    /// Copies rank 0's buffers, such as BatchNorm's running statistics, to all ranks, and returns the module's digest.
    /// Every rank must call it, for instance at the end of an epoch.
    ///
    /// # Errors
    /// [`Error::Diverged`](crate::Error::Diverged) naming the ranks whose parameters differ,
    /// [`Error::NonFinite`](crate::Error::NonFinite) for the last step, or if the group or the device fails.
    pub fn synchronize(&mut self) -> Result<String> {
        self.inner.finish()?;
        let when = format!("after step {}", self.inner.engine.steps);
        let (module, digest) = module_state::verify_and_share_buffers(
            self.inner.module.clone(),
            &self.inner.engine.group,
            0,
            &when,
        )?;
        self.inner.module = module;
        Ok(digest)
    }

    /// The state for a checkpoint, besides the module and the optimizer. Equal on all ranks.
    pub fn state(&self) -> StepState {
        self.inner.state()
    }

    /// Restores the state from a checkpoint.
    pub fn load_state(&mut self, state: StepState) {
        self.inner.load_state(state);
    }

    /// The reason why overlap is disabled although it was requested, if it is.
    pub fn fallback(&self) -> Option<&str> {
        self.inner.engine.reducer.fallback()
    }

    /// Parameters that not all ranks with samples used in the last step, with the number of ranks that did.
    pub fn unused(&self) -> impl Iterator<Item = (&str, usize)> {
        self.inner.engine.reducer.unused()
    }

    /// The process group.
    pub fn group(&self) -> &ProcessGroup {
        &self.inner.engine.group
    }
}

impl<M: Module> Deref for DistributedDataParallel<M> {
    type Target = M;

    fn deref(&self) -> &M {
        self.module()
    }
}

impl<M: Module> ParallelModule<M> for DistributedDataParallel<M> {
    fn backward<B: Scatter>(
        &mut self,
        batch: ShardedBatch<B>,
        loss: impl Fn(&M, B) -> Tensor<1> + Send + Sync + 'static,
    ) -> Result<(Loss, StepGradients)> {
        DistributedDataParallel::backward(self, batch, loss)
    }

    fn step(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: impl Into<ModuleLearningRate>,
        gradients: StepGradients,
    ) -> Result<()> {
        DistributedDataParallel::step(self, optimizer, lr, gradients)
    }

    fn module(&self) -> &M {
        &self.inner.module
    }
}
