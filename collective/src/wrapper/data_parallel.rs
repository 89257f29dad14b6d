//! `DataParallel`: replicas of a module on several devices of one process.

use super::{
    Loss, ParallelModule, StepGradients, StepOptions, StepState, Wrapped,
    engine::{BatchOutput, Engine},
    size_of,
};
use crate::{
    ProcessGroup, Result,
    data_parallel::{DataParallelConfig, Replicas, Scatter},
    loader::ShardedBatch,
    module_state,
};
use burn::module::Module;
use burn::optim::{ModuleOptimizer, lr_scheduler::module_lr_scheduler::ModuleLearningRate};
use burn::tensor::{Device, Tensor};
use std::{ops::Deref, sync::Arc};

/// A module that is trained on several devices of this process, as PyTorch's `DataParallel`.
///
/// The module is on the first device. Each batch is scattered over the devices, and every replica computes the mean
/// loss of its part in its own thread. The gradients are added up on the first device, weighted by samples, which gives
/// the gradient of the mean loss over the batch.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::SgdConfig;
/// use burn::tensor::{Device, Tensor};
/// use collective::{DataParallel, loader::ShardedBatch};
///
/// let device = Device::flex().autodiff();
/// let net: Linear = LinearConfig::new(3, 1).init(&device);
/// let mut model = DataParallel::new(net, &[Device::flex(), Device::flex()])?;
/// let mut optimizer = SgdConfig::new().init();
/// let batch = ShardedBatch::whole(Tensor::<2>::ones([5, 3], &device), 5);
/// let (loss, gradients) = model.backward(batch, |net, x| net.forward(x).powi_scalar(2).mean())?;
/// model.step(&mut optimizer, 0.1, gradients)?;
/// println!("{}", loss.mean()?);
/// # Ok::<(), collective::Error>(())
/// ```
pub struct DataParallel<M> {
    inner: Wrapped<M>,
    replicas: Replicas<M>,
}

impl<M: Module + 'static> DataParallel<M> {
    /// Wraps `module` with replicas on `devices` and default options.
    ///
    /// # Errors
    /// [`Error::NotTrainable`](crate::Error::NotTrainable) for a module without autodiff, or if there is no device, or
    /// a thread cannot be started.
    pub fn new(module: M, devices: &[Device]) -> Result<Self> {
        Self::with_options(module, DataParallelConfig::new(devices), StepOptions::default())
    }

    /// Wraps `module` with replicas as `config` describes. SyncBatchNorm is enabled in either argument.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), and if a device does not support the precision, NCCL is requested and cannot be
    /// used, or a `burn::nn::BatchNorm` cannot be synchronised.
    pub fn with_options(module: M, config: DataParallelConfig, options: StepOptions) -> Result<Self> {
        let config = DataParallelConfig {
            sync_batch_norm: config.sync_batch_norm || options.sync_batch_norm,
            ..config
        };
        let precision = options.reducer.precision;
        config.devices.iter().try_for_each(|(device, _)| precision.check(device))?;
        module_state::initialize(&module);
        let main = config.devices.first().map(|(device, _)| device.clone()).unwrap_or_default();
        let main = if main.is_autodiff() { main } else { main.autodiff() };
        let module = module.fork(&main);
        let replicas = Replicas::new(&module, &config)?;
        let engine = Engine::new(&module, &ProcessGroup::solo(), &main, options)?;
        Ok(Self { inner: Wrapped { module, engine, unchecked: None }, replicas })
    }

    /// Runs forward and backward over a batch, with a part on each device.
    ///
    /// `loss` returns the mean loss `[1]` over the samples of its part, in any float type. In 16 bits, it receives
    /// parameters and a batch of that type, and casts the outputs to f32 if the loss is to be computed in f32.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) for the first device whose thread failed or panicked, or if the loss is
    /// not finite: of this step on a CPU, of the previous step on a GPU.
    pub fn backward<B: Scatter>(
        &mut self,
        batch: ShardedBatch<B>,
        loss: impl Fn(&M, B) -> Tensor<1> + Send + Sync + 'static,
    ) -> Result<(Loss, StepGradients)> {
        let (size, item, loss) = (size_of(&batch), batch.item, Arc::new(loss));
        let Self { inner: Wrapped { module, engine, .. }, replicas } = self;
        let computed = engine.batch(module, size, |copies, scope| {
            let (grads, loss) = replicas.gradients(module, &copies.net, item, scope, &loss)?;
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

    /// The module on the first device, for checkpoints and for reading parameters.
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

    /// Waits for the last step and returns the digest of the module.
    ///
    /// # Errors
    /// [`Error::NonFinite`](crate::Error::NonFinite) for the last step, or if the device fails.
    pub fn synchronize(&mut self) -> Result<String> {
        self.inner.finish()?;
        module_state::digest(&self.inner.module)
    }

    /// The state for a checkpoint, besides the module and the optimizer.
    pub fn state(&self) -> StepState {
        self.inner.state()
    }

    /// Restores the state from a checkpoint.
    pub fn load_state(&mut self, state: StepState) {
        self.inner.load_state(state);
    }
}

impl<M: Module + 'static> Deref for DataParallel<M> {
    type Target = M;

    fn deref(&self) -> &M {
        self.module()
    }
}

impl<M: Module + 'static> ParallelModule<M> for DataParallel<M> {
    fn backward<B: Scatter>(
        &mut self,
        batch: ShardedBatch<B>,
        loss: impl Fn(&M, B) -> Tensor<1> + Send + Sync + 'static,
    ) -> Result<(Loss, StepGradients)> {
        DataParallel::backward(self, batch, loss)
    }

    fn step(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: impl Into<ModuleLearningRate>,
        gradients: StepGradients,
    ) -> Result<()> {
        DataParallel::step(self, optimizer, lr, gradients)
    }

    fn module(&self) -> &M {
        &self.inner.module
    }
}
