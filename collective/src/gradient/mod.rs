//! All-reduce of gradients, overlapped with the backward pass.
//!
//! Most programs use [`DistributedDataParallel`](crate::DistributedDataParallel), which wraps a [`Reducer`].
//!
//! A [`Reducer`] divides a model's gradients into buckets, in reverse field order. In a [`Step`] the
//! model is watched: as soon as all gradients of a bucket are final, they are written into the bucket, which is reduced
//! in the background, in index order, while backward computes the
//! layers below (Li et al. 2020, "PyTorch Distributed", arXiv 2006.15704). In the following cases gradients are
//! collected after backward, with bit-identical sums:
//!
//! - parameters that cannot be watched (under another reparameterization, on a second device, or unused) are
//!   collected at the end;
//! - a step that runs backward twice, or changes gradients after backward, is detected and repeated
//!   without overlap, and so are all later steps; [`Reducer::fallback`] returns the reason.
//!
//! If the group has a device transport ([`ProcessGroup::attach`]), buckets stay in device memory. The all-reduce of
//! a full bucket is queued on the device during backward, and the device waits for the sums at the end of the
//! step. The training thread waits for the other ranks' flags in the first step, and in steps in which it has no
//! gradient of some parameter; otherwise they are read after the next step is launched. A step that must be repeated
//! on some ranks only is then an error, unless it is the first.
//!
//! A parameter that no rank uses gets no gradient, as on a single device. A parameter that some ranks use
//! contributes zeros on the others. This is PyTorch's `find_unused_parameters`, always enabled, because the number
//! of ranks that used a parameter is part of a message that is sent in any case.

mod accumulate;
mod agreement;
mod buckets;
mod clip;
mod closed_buckets;
mod hook;
mod in_flight;
mod layers;
mod power_sgd;
mod read;
mod sharding;
mod step;
mod step_buckets;
mod top_k;
mod watch;

pub(crate) use accumulate::add;
pub(crate) use agreement::Agreement;
pub use buckets::BucketSizes;
pub use clip::clip_by_global_norm;
pub(crate) use clip::{Norm, scaled};
pub use hook::{Bucket, BucketParameter, CommHook, HalfPrecision};
pub use power_sgd::PowerSgd;
pub use step::Step;
pub(crate) use step::{FinishedStep, LaunchedReduction};
pub use top_k::TopK;
pub(crate) use watch::in_precision;

use crate::{
    ProcessGroup, Result,
    precision::{LossScaler, Precision},
};
use accumulate::AccumulatedGradients;
use buckets::BucketPlan;
use burn::module::Module;
use burn::optim::GradientsParams;
use hook::BucketSender;
use layers::check_layers;
use sharding::check_dtypes;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::info_span;
use watch::DepthAnchors;

/// Options of a [`Reducer`].
#[derive(Clone, Debug)]
pub struct ReducerOptions {
    /// Bucket sizes.
    pub buckets: BucketSizes,
    /// Whether to communicate during backward.
    pub overlap: bool,
    /// Communication hook; `None` sums in f32.
    pub hook: Option<Arc<dyn CommHook>>,
    /// Floating-point type of forward and backward.
    pub precision: Precision,
    /// Whether the optimizer's state is divided over the ranks (ZeRO-1: Rajbhandari et al. 2020, arXiv 1910.02054).
    ///
    /// Each rank gets the averaged gradients of its shard of the parameters, and its optimizer therefore has the state
    /// of these only. [`Reducer::share_parameters`] sends the updated parameters to all ranks.
    pub shard_optimizer: bool,
}

impl Default for ReducerOptions {
    /// PyTorch's bucket sizes, with overlap, without a hook, in f32, with the whole optimizer on every rank.
    fn default() -> Self {
        Self {
            buckets: BucketSizes::default(),
            overlap: true,
            hook: None,
            precision: Precision::F32,
            shard_optimizer: false,
        }
    }
}

/// Averages the gradients of all ranks over the global batch.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{GradientsParams, SgdConfig};
/// use burn::tensor::{Device, Tensor};
/// use burn_ddp_collective::{ProcessGroup, gradient::{Reducer, ReducerOptions}};
///
/// let group = ProcessGroup::solo();
/// let device = Device::flex().autodiff();
/// let mut model: Linear = LinearConfig::new(3, 2).init(&device);
/// let mut optimizer = SgdConfig::new().init();
/// let mut reducer = Reducer::new(&model, &group, ReducerOptions::default())?;
///
/// let backward = |model: &Linear, samples: usize| {
///     let loss = model.forward(Tensor::<2>::ones([samples, 3], &device)).mean();
///     GradientsParams::from_grads(loss.backward(), model)
/// };
/// // Two batches per step with 7 samples; only the second one communicates.
/// let grads = backward(&model, 4);
/// reducer.accumulate(grads, &model, 4);
/// let step = reducer.step(3, 7);
/// let grads = backward(&step.watch(&model), 3);
/// let grads = step.finish(grads, &model, &mut vec![])?;
/// model = optimizer.step(0.1, model, grads);
/// # Ok::<(), burn_ddp_collective::Error>(())
/// ```
#[derive(Debug)]
pub struct Reducer {
    plan: Arc<BucketPlan>,
    /// A separate group, so that other collectives, such as SyncBatchNorm's, are independent of the buckets' order
    /// during backward. `None` in a world of one without a device transport.
    sender: Option<BucketSender>,
    accumulated: AccumulatedGradients,
    anchors: Arc<DepthAnchors>,
    precision: Precision,
    /// Loss scaler of f16.
    scaler: Option<LossScaler>,
    overlap: bool,
    /// Whether buckets stay in device memory.
    on_device: bool,
    fallback: Option<String>,
    /// Whether the ranks have agreed on a step. On a device, later steps are used before they have.
    agreed: bool,
    /// [`Agreed::users`](agreement::Agreed::users) of the last step on which the ranks have agreed.
    users: Vec<usize>,
    /// Time spent waiting for all ranks' gradients after backward.
    waited: Duration,
}

impl Reducer {
    /// Creates a reducer for the trainable parameters of `module`. Every rank of `group` must call it, on the thread
    /// that trains.
    ///
    /// # Errors
    /// If the group fails, or a `burn::nn::BatchNorm` or trainable `burn::nn::Embedding` does not support the precision. With
    /// [`shard_optimizer`](ReducerOptions::shard_optimizer), if a trainable parameter is not f32.
    pub fn new<M: Module>(module: &M, group: &ProcessGroup, options: ReducerOptions) -> Result<Self> {
        let ReducerOptions { buckets, overlap, hook, precision, shard_optimizer } = options;
        check_layers(module, precision)?;
        let shard = (shard_optimizer && group.world_size() > 1).then(|| (group.rank(), group.world_size()));
        if shard.is_some() {
            check_dtypes(module)?;
        }
        let sender = match group.world_size() {
            1 if group.device().is_none() => None,
            _ => Some(BucketSender { group: group.duplicate("gradients")?, hook }),
        };
        // Hooks run on the host.
        let on_device =
            sender.as_ref().is_some_and(|sender| sender.group.device().is_some() && sender.hook.is_none());
        // The small first bucket allows an early start.
        let first = if on_device && !overlap { buckets.first.max(buckets.rest) } else { buckets.first };
        Ok(Self {
            plan: Arc::new(BucketPlan::new(module, BucketSizes { first, ..buckets }, shard)),
            sender,
            accumulated: AccumulatedGradients::default(),
            anchors: Arc::default(),
            precision,
            scaler: (precision == Precision::F16).then(LossScaler::start),
            overlap,
            on_device,
            fallback: None,
            agreed: false,
            users: Vec::new(),
            waited: Duration::ZERO,
        })
    }

    /// Returns the copy of `module` that computes a batch without synchronisation.
    pub fn local<M: Module>(&self, module: &M) -> M {
        in_precision(module, self.precision)
    }

    /// Accumulates the gradients of a batch without synchronisation, as PyTorch's `no_sync`.
    ///
    /// They are added to those of the next [`Step`], weighted by samples. `grads` are those of a mean over this
    /// rank's `samples`, which is 0 for padding.
    #[doc(alias = "no_sync")]
    pub fn accumulate<M: Module>(&mut self, grads: GradientsParams, module: &M, samples: usize) {
        self.accumulated.add(grads, module, samples);
    }

    /// Time that steps spent waiting for other ranks' gradients since the last call.
    pub(crate) fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// Number of buckets.
    pub fn buckets(&self) -> usize {
        self.plan.buckets()
    }

    /// Reason why overlap was disabled after it was requested, if it was.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Whether gradients stay in device memory.
    pub fn on_device(&self) -> bool {
        self.on_device
    }

    /// The current loss scale; 1 except for f16.
    pub fn loss_scale(&self) -> f32 {
        self.scaler.map_or(1.0, |scaler| scaler.scale)
    }

    /// Whether the last step was skipped because its gradients overflowed f16.
    pub fn skipped(&self) -> bool {
        self.scaler.is_some_and(|scaler| scaler.skipped)
    }

    /// Loss scale and number of steps since it last changed, for a checkpoint; `None` except for f16.
    pub(crate) fn scaler_state(&self) -> Option<(f32, u32)> {
        self.scaler.map(LossScaler::state)
    }

    /// Restores the loss scale of a checkpoint.
    pub(crate) fn restore_scaler(&mut self, state: Option<(f32, u32)>) {
        if let (Some(scaler), Some(state)) = (&mut self.scaler, state) {
            *scaler = LossScaler::restore(state);
        }
    }

    /// Parameters that only some ranks used in the last step, with the number of ranks, and unused ones.
    ///
    /// Ranks without samples do not count. Empty in a world of one.
    pub fn unused(&self) -> impl Iterator<Item = (&str, usize)> {
        let (with_samples, users) = self.users.split_last().unwrap_or((&0, &[]));
        let slots = self.plan.slots.iter().zip(users);
        slots.filter(|(_, users)| *users < with_samples).map(|(slot, users)| (slot.path.as_str(), *users))
    }

    /// Waits for the sums of a step's flags over all ranks.
    ///
    /// # Errors
    /// If the group fails, or the step's sums differ from the ranks' gradients.
    pub(crate) fn settle(&mut self, mut flags: Agreement) -> Result<Vec<f32>> {
        let agreed = flags.wait()?;
        agreed.unanimous()?;
        self.users = agreed.users;
        Ok(agreed.flags)
    }
}

/// Runs `wait` in a span named `name` and adds its duration to `sum`.
pub(crate) fn timed<T>(name: &str, sum: &mut Duration, wait: impl FnOnce() -> T) -> T {
    let _span = info_span!("wait", name).entered();
    let began = Instant::now();
    let result = wait();
    *sum += began.elapsed();
    result
}
