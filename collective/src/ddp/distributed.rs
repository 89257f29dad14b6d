//! `DistributedDataParallel`: a replica of a module on every rank.

use super::{Loss, ParallelModule, StepGradients, StepOptions, engine::Engine};
use crate::{
    ProcessGroup, Result, data::loader::ShardedBatch, dp::Scatter, module_state,
    sync_batch_norm::convert_sync_batch_norm,
};
use burn::module::Module;
use burn::tensor::{Device, Tensor};

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
/// use burn_ddp_collective::{DistributedDataParallel, ProcessGroup, loader::ShardedBatch};
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
/// # Ok::<(), burn_ddp_collective::Error>(())
/// ```
pub struct DistributedDataParallel<M>(pub(super) ParallelModule<M>);

impl<M: Module + 'static> DistributedDataParallel<M> {
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
        let outer = engine.outer_optimizer(&module)?;
        Ok(Self(ParallelModule { module, engine, outer, replicas: None, unchecked: None }))
    }

    /// [`ParallelModule::backward`] with a loss that may borrow from its environment.
    ///
    /// # Errors
    /// Those of [`ParallelModule::backward`].
    pub fn backward<B: Scatter>(
        &mut self,
        batch: ShardedBatch<B>,
        loss: impl FnOnce(&M, B) -> Tensor<1>,
    ) -> Result<(Loss, StepGradients)> {
        self.0.backward_here(batch, loss)
    }
}

/// The device of `module`, with autodiff.
fn device_of<M: Module>(module: &M) -> Device {
    let device = module.devices().into_iter().next().unwrap_or_default();
    if device.is_autodiff() { device } else { device.autodiff() }
}
