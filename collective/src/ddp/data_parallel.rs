//! `DataParallel`: replicas of a module on several devices of one process.

use super::{ParallelModule, StepOptions, engine::Engine};
use crate::{
    Error, ProcessGroup, Result,
    dp::{DataParallelConfig, Replicas},
    module_state,
};
use burn::module::Module;
use burn::tensor::Device;

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
/// use burn_ddp_collective::{DataParallel, loader::ShardedBatch};
///
/// let device = Device::flex().autodiff();
/// let net: Linear = LinearConfig::new(3, 1).init(&device);
/// let mut model = DataParallel::new(net, &[Device::flex(), Device::flex()])?;
/// let mut optimizer = SgdConfig::new().init();
/// let batch = ShardedBatch::whole(Tensor::<2>::ones([5, 3], &device), 5);
/// let (loss, gradients) = model.backward(batch, |net, x| net.forward(x).powi_scalar(2).mean())?;
/// model.step(&mut optimizer, 0.1, gradients)?;
/// println!("{}", loss.mean()?);
/// # Ok::<(), burn_ddp_collective::Error>(())
/// ```
pub struct DataParallel<M>(pub(super) ParallelModule<M>);

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
    /// used, a `burn::nn::BatchNorm` cannot be synchronised, or the optimizer is to be sharded.
    pub fn with_options(module: M, config: DataParallelConfig, options: StepOptions) -> Result<Self> {
        let config = DataParallelConfig {
            sync_batch_norm: config.sync_batch_norm || options.sync_batch_norm,
            ..config
        };
        if options.reducer.shard_optimizer {
            return Err(Error::Invalid(
                "DataParallel has one optimizer, on its first device: shard_optimizer needs a rank per device".into(),
            ));
        }
        let precision = options.reducer.precision;
        config.devices.iter().try_for_each(|(device, _)| precision.check(device))?;
        module_state::initialize(&module);
        let main = config.devices.first().map(|(device, _)| device.clone()).unwrap_or_default();
        let main = if main.is_autodiff() { main } else { main.autodiff() };
        let module = module.fork(&main);
        let replicas = Replicas::new(&module, &config)?;
        let engine = Engine::new(&module, &ProcessGroup::solo(), &main, options)?;
        let outer = engine.outer_optimizer(&module)?;
        Ok(Self(ParallelModule { module, engine, outer, replicas: Some(replicas), unchecked: None }))
    }
}
