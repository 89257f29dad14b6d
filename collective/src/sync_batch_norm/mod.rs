//! BatchNorm over the batches of all ranks together, on every Burn device.
//!
//! A [`SyncBatchNorm`] contains Burn's `BatchNorm` and, after [`convert_sync_batch_norm`] or
//! [`SyncBatchNorm::with_group`], a process group. In training with several ranks it makes one all-gather in forward
//! and one all-reduce in backward. Frozen, in inference, without a group or in a group of one rank, it is bit-identical
//! to Burn's BatchNorm, except on a CPU, where the kernels are faster and round differently.

mod activated;
mod convert;
mod host;
mod inference;
mod kernel;
mod module;

pub(crate) use convert::convert;
pub use convert::convert_sync_batch_norm;

use crate::{ProcessGroup, batch_context};
use activated::{Activation, activated};
use burn::backend::Flex;
use burn::config::Config;
use burn::module::RunningState;
use burn::nn::pool::MaxPool2d;
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::{
    DType, Device, FloatDType, Tensor, assert_shape,
    module::{batch_norm, batch_norm_train},
};
use inference::inference;
use kernel::Settings;
use kernels::{
    host_tensor::{is_flex, is_host},
    layers::{operation, relu, relu_max_pool, relu_max_pool_windows},
};
use serde::{Deserialize, Serialize};

/// Variance of a batch of `n` values per channel that updates the running variance.
///
/// Batches themselves are always normalised with the population variance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunningVariance {
    /// Divided by `n`, as Burn's BatchNorm keeps it.
    Population,
    /// Divided by `n - 1`, as PyTorch's BatchNorm keeps it.
    Unbiased,
}

/// Settings of a [`SyncBatchNorm`].
///
/// They are those of Burn's `BatchNormConfig`, with the same defaults, and [`RunningVariance`].
#[derive(Config, Debug)]
pub struct SyncBatchNormConfig {
    /// Number of channels, at least 1.
    pub num_features: usize,
    /// Constant added to the variance, above 0.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Weight of a new batch in the running statistics, 0 to 1.
    #[config(default = 0.1)]
    pub momentum: f64,
    /// Variance that updates the running variance.
    #[config(default = "RunningVariance::Population")]
    pub running_variance: RunningVariance,
}

impl SyncBatchNormConfig {
    /// Creates a module without a group.
    ///
    /// # Panics
    /// If a setting is out of range, as in Burn's BatchNorm.
    pub fn init(&self, device: &Device) -> SyncBatchNorm {
        let config =
            BatchNormConfig::new(self.num_features).with_epsilon(self.epsilon).with_momentum(self.momentum);
        SyncBatchNorm::from(config.init(device)).with_running_variance(self.running_variance)
    }
}

/// Batch normalisation with the statistics of all ranks' batches.
///
/// Parameters, buffers, names and records are those of Burn's `BatchNorm`. The gradients of gamma and beta cover this
/// rank's samples and are reduced with all other gradients.
#[derive(Clone, Debug)]
pub struct SyncBatchNorm {
    /// Parameters, running statistics and settings.
    pub norm: BatchNorm,
    /// Variance that updates the running variance.
    pub running_variance: RunningVariance,
    group: Option<ProcessGroup>,
}

impl From<BatchNorm> for SyncBatchNorm {
    fn from(norm: BatchNorm) -> Self {
        Self { norm, running_variance: RunningVariance::Population, group: None }
    }
}

impl From<SyncBatchNorm> for BatchNorm {
    fn from(sync: SyncBatchNorm) -> Self {
        sync.norm
    }
}

impl SyncBatchNorm {
    burn_ddp_comm::setters! {
        /// Sets the process group whose statistics are synchronised.
        with_group(group: &ProcessGroup) => group = Some(group.clone());

        /// Sets the variance that updates the running variance.
        with_running_variance(running_variance: RunningVariance) => running_variance = running_variance;
    }

    /// The process group, if one is set.
    pub fn group(&self) -> Option<&ProcessGroup> {
        self.group.as_ref()
    }

    /// Normalises `input` of shape `[batch, channels, ...]` over all dimensions except the channels.
    ///
    /// In training, every rank of the group must call it and run backward through it. The ranks' batches may differ
    /// in size and be empty. Ranks that are threads of one process need separate replicas and losses: Burn runs one
    /// backward pass at a time over a connected graph, and the ranks' backward passes wait for each other.
    ///
    /// If the group fails, the output is undefined and the running statistics are unchanged.
    /// [`ProcessGroup::failure`] and every later call on the group return the cause.
    ///
    /// # Panics
    /// If the number of channels differs from that of gamma.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let training = input.device().is_autodiff() && self.norm.training.is_enabled();
        // Burn's BatchNorm requires an input of the statistics' type; sums in 16 bits would be inaccurate.
        let half = matches!(input.dtype(), DType::F16 | DType::BF16);
        match (&self.group, self.running_variance) {
            _ if !training => self.forward_inference(input, half),
            // On a CPU the kernel's passes over a batch are faster than Burn's operations.
            _ if is_host(&input) => self.forward_activated(input, Activation::None),
            _ if half && is_flex(&input.device()) => {
                let dtype = FloatDType::from(input.dtype());
                self.forward_activated(input.cast(FloatDType::F32), Activation::None).cast(dtype)
            }
            (Some(group), _) if group.world_size() > 1 => self.forward_together(input, group),
            _ if half => self.forward_together(input, &ProcessGroup::solo()),
            (_, RunningVariance::Population) => self.norm.forward(input),
            (_, RunningVariance::Unbiased) => self.forward_alone(input),
        }
    }

    /// Computes `relu(self.forward(input))`, in training on a CPU in the same passes over the batch.
    ///
    /// # Panics
    /// As [`SyncBatchNorm::forward`].
    pub fn forward_relu<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        match self.is_fused(&input) {
            true => self.forward_activated(input, Activation::Relu),
            false => relu(self.forward(input)),
        }
    }

    /// Computes `pool.forward(relu(self.forward(input)))`, in training on a CPU in the same passes over the batch.
    ///
    /// The kernel supports windows with a stride equal to their size, without padding and dilation.
    ///
    /// # Panics
    /// As [`SyncBatchNorm::forward`].
    pub fn forward_relu_max_pool(&self, pool: &MaxPool2d, input: Tensor<4>) -> Tensor<4> {
        match self.is_fused(&input).then(|| relu_max_pool_windows(pool, &input)).flatten() {
            Some(windows) => self.forward_activated(input, Activation::ReluMaxPool(windows)),
            None => relu_max_pool(pool, self.forward(input)),
        }
    }

    /// Whether a kernel computes the ReLU along with the normalisation.
    fn is_fused<const D: usize>(&self, input: &Tensor<D>) -> bool {
        input.device().is_autodiff() && self.norm.training.is_enabled() && is_host(input)
    }

    fn forward_activated<const D: usize>(&self, input: Tensor<D>, activation: Activation) -> Tensor<D> {
        let solo = ProcessGroup::solo();
        let (group, device) = (self.group.as_ref().unwrap_or(&solo), input.device());
        let (settings, mut moments) = (self.settings(&input, group), None);
        // With 16-bit inputs, the parameters have that type, too.
        let [gamma, beta] = [&self.norm.gamma, &self.norm.beta]
            .map(|parameter| parameter.val().cast(FloatDType::F32).into_dispatch());
        let output = operation::run([input.into_dispatch(), gamma, beta], |inputs| {
            let (output, of_all, backward) = activated(settings, activation, inputs);
            moments = Some(of_all);
            (output, backward)
        });
        if let Some([mean, variance]) = moments
            && group.failure().is_none()
        {
            self.update_on_host(&self.norm.running_mean, &mean, &device);
            self.update_on_host(&self.norm.running_var, &variance, &device);
        }
        output
    }

    /// Normalises with the running statistics, `half` in f32.
    fn forward_inference<const D: usize>(&self, input: Tensor<D>, half: bool) -> Tensor<D> {
        let norm = &self.norm;
        let [channels] = norm.gamma.shape().dims();
        assert_shape!(input, [_, channels, ..]);
        let (dtype, device) = (FloatDType::from(input.dtype()), input.device());
        let [mean, variance] =
            [&norm.running_mean, &norm.running_var].map(|running| running.value().to_device(&device));
        let mut all = (input, [norm.gamma.val(), norm.beta.val(), mean, variance]);
        if half {
            // The parameters of a frozen module may have 16 bits, too.
            all = (all.0.cast(FloatDType::F32), all.1.map(|values| values.cast(FloatDType::F32)));
        }
        let (input, [gamma, beta, mean, variance]) = all;
        let output = if is_host(&input) {
            let others = [gamma, beta, mean, variance].map(Tensor::into_dispatch);
            let [gamma, beta, mean, variance] = others;
            let inputs = [input.into_dispatch(), gamma, beta, mean, variance];
            operation::run(inputs, |inputs| inference(norm.epsilon, inputs))
        } else {
            batch_norm(input, gamma, beta, mean, variance, norm.epsilon)
        };
        if half { output.cast(dtype) } else { output }
    }

    fn forward_together<const D: usize>(&self, input: Tensor<D>, group: &ProcessGroup) -> Tensor<D> {
        let (settings, on_host) = (self.settings(&input, group), is_flex(&input.device()));
        let [gamma, beta] =
            [&self.norm.gamma, &self.norm.beta].map(|parameter| parameter.val().into_dispatch());
        let inputs = [input.into_dispatch(), gamma, beta];
        let normalised = match on_host {
            true => kernel::forward::<Flex, D>(inputs, &settings),
            #[cfg(feature = "cube")]
            false => kernel::forward::<burn::backend::Cube, D>(inputs, &settings),
            #[cfg(not(feature = "cube"))]
            false => None,
        };
        let (output, [mean, variance]) = normalised.expect("tensors on the same device");
        if group.failure().is_none() {
            self.update(mean, variance);
        }
        output
    }

    /// # Panics
    /// If the number of channels differs from that of gamma.
    fn settings<const D: usize>(&self, input: &Tensor<D>, group: &ProcessGroup) -> Settings {
        let [channels] = self.norm.gamma.shape().dims();
        assert_shape!(input, [_, channels, ..]);
        Settings {
            group: group.clone(),
            epsilon: self.norm.epsilon,
            unbiased: self.running_variance == RunningVariance::Unbiased,
            weight: batch_context::weight(),
        }
    }

    /// Computes Burn's BatchNorm, except for the running variance.
    fn forward_alone<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let [channels] = self.norm.gamma.shape().dims();
        assert_shape!(input, [_, channels, ..]);
        let count = input.shape().num_elements() / channels;
        let (gamma, beta) = (self.norm.gamma.val(), self.norm.beta.val());
        let result = batch_norm_train(input, gamma, beta, self.norm.epsilon);
        let unbiased = count as f64 / count.saturating_sub(1).max(1) as f64;
        self.update(result.mean, result.variance.mul_scalar(unbiased));
        result.output
    }

    /// Updates a running statistic with a batch's: on plain numbers, because Burn's operations on a few channels would
    /// take longer than the pass over a small batch.
    fn update_on_host(&self, running: &RunningState<Tensor<1>>, new: &[f32], device: &Device) {
        let [old_weight, weight] = [1.0 - self.norm.momentum, self.norm.momentum].map(|weight| weight as f32);
        let old = running.value_sync();
        let moved: Vec<f32> = (old.to_data().iter::<f32>().zip(new))
            .map(|(old, new)| old * old_weight + new * weight)
            .collect();
        running.update(Tensor::from_data(moved.as_slice(), (device, old.dtype())));
    }

    /// Updates the running statistics with a batch's.
    fn update(&self, mean: Tensor<1>, variance: Tensor<1>) {
        let momentum = self.norm.momentum;
        let blend = |running: &RunningState<Tensor<1>>, new: Tensor<1>| {
            let old = running.value_sync().to_device(&new.device());
            let new = new.detach().cast(FloatDType::from(old.dtype()));
            let moved = old.mul_scalar(1.0 - momentum).add(new.mul_scalar(momentum));
            running.update(moved.detach());
        };
        blend(&self.norm.running_mean, mean);
        blend(&self.norm.running_var, variance);
    }
}
