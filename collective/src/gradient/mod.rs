//! All-reduce of gradients, overlapped with the backward pass.
//!
//! Most programs use [`DistributedDataParallel`](crate::DistributedDataParallel), which wraps a [`Reducer`].
//!
//! A [`Reducer`] divides a model's gradients into buckets, in reverse field order. In a [`Step`] the
//! model is watched: each gradient is written into its bucket as soon as it is final, and each bucket is reduced in
//! the background as soon as it is full, in index order, while backward computes the
//! layers below (Li et al. 2020, "PyTorch Distributed", arXiv 2006.15704). Where that does not
//! work, gradients are collected after backward, with the same sums, bit for bit:
//!
//! - what cannot be watched (parameters under another reparameterization, on a second
//!   device, unused ones) is collected at the end;
//! - a step that runs backward twice, or changes gradients after backward, is detected and repeated
//!   without overlap, and so are all later steps; [`Reducer::fallback`] returns the reason.
//!
//! Where the group exchanges data on the ranks' devices ([`ProcessGroup::attach`]), buckets stay in
//! device memory: the all-reduce of a full bucket is put on the device's queue during backward, and the
//! device waits for the sums when the step is finished.
//!
//! A parameter that is used on no rank gets no gradient, as on a single device. One that is used on
//! some contributes zeros on the others. This is PyTorch's `find_unused_parameters`, always enabled, because the
//! number of ranks that used a parameter is part of a message that is sent anyway.

mod accumulate;
mod arrivals;
pub(crate) mod buckets;
mod clip;
mod device_buckets;
mod hook;
mod host_buckets;
mod in_flight;
pub(crate) mod module_gradients;
mod power_sgd;
mod read;
mod step;
mod top_k;
mod watch;

pub use buckets::BucketSizes;
pub use clip::clip_by_global_norm;
pub(crate) use clip::{Norm, scaled};
pub use hook::{Bucket, BucketParameter, CommHook, HalfPrecision};
pub use power_sgd::PowerSgd;
pub use step::Step;
pub use top_k::TopK;
pub(crate) use watch::in_precision;

use crate::{
    ProcessGroup, Result,
    precision::{LossScaler, Precision},
    tensor,
};
use accumulate::AccumulatedGradients;
use buckets::BucketPlan;
use burn::module::Module;
use burn::optim::GradientsParams;
use hook::BucketSender;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use watch::DepthAnchors;

/// Options of a [`Reducer`].
#[derive(Clone, Debug)]
pub struct ReducerOptions {
    /// Bucket sizes.
    pub buckets: BucketSizes,
    /// Whether to communicate during backward.
    pub overlap: bool,
    /// How a bucket is reduced; `None` adds up in f32.
    pub hook: Option<Arc<dyn CommHook>>,
    /// The floating-point type that forward and backward compute with.
    pub precision: Precision,
}

impl Default for ReducerOptions {
    /// PyTorch's bucket sizes, with overlap, without a hook, in f32.
    fn default() -> Self {
        Self { buckets: BucketSizes::default(), overlap: true, hook: None, precision: Precision::F32 }
    }
}

/// Averages the gradients of all ranks over the global batch.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{GradientsParams, SgdConfig};
/// use burn::tensor::{Device, Tensor};
/// use collective::{ProcessGroup, gradient::{Reducer, ReducerOptions}};
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
/// // Two batches a step, 7 samples in all; only the second one communicates.
/// let grads = backward(&model, 4);
/// reducer.accumulate(grads, &model, 4);
/// let step = reducer.step(&model, 3, 7)?;
/// let grads = backward(&step.watch(&model), 3);
/// let grads = step.finish(grads, &model, &mut vec![])?;
/// model = optimizer.step(0.1, model, grads);
/// # Ok::<(), collective::Error>(())
/// ```
#[derive(Debug)]
pub struct Reducer {
    plan: Arc<BucketPlan>,
    /// Has a separate group, so that other collectives, such as SyncBatchNorm's, may be called during backward
    /// without an order between them and the buckets. `None` in a world of one.
    sender: Option<BucketSender>,
    accumulated: AccumulatedGradients,
    anchors: Arc<DepthAnchors>,
    precision: Precision,
    /// For f16.
    scaler: Option<LossScaler>,
    overlap: bool,
    /// Whether buckets stay in device memory.
    on_device: bool,
    /// Whether a step with overlap has been compared, in full, with what backward left.
    compared: bool,
    fallback: Option<String>,
    users: Vec<usize>,
    /// Time after backward until all ranks' gradients were there.
    waited: Duration,
}

impl Reducer {
    /// Creates a reducer for the trainable parameters of `module`. Every rank of `group` must call it, on the thread
    /// that trains.
    ///
    /// # Errors
    /// If the group fails.
    pub fn new<M: Module>(module: &M, group: &ProcessGroup, options: ReducerOptions) -> Result<Self> {
        let ReducerOptions { buckets, overlap, hook, precision } = options;
        let sender = match group.world_size() {
            1 => None,
            _ => Some(BucketSender { group: group.split(0, group.rank() as i64)?, hook }),
        };
        // A hook works on the host.
        let on_device =
            sender.as_ref().is_some_and(|sender| sender.group.device().is_some() && sender.hook.is_none());
        // A small first bucket is for an early start.
        let first = if on_device && !overlap { buckets.first.max(buckets.rest) } else { buckets.first };
        Ok(Self {
            plan: Arc::new(BucketPlan::new(module, BucketSizes { first, ..buckets })),
            sender,
            accumulated: AccumulatedGradients::default(),
            anchors: Arc::default(),
            precision,
            scaler: (precision == Precision::F16).then(LossScaler::start),
            overlap,
            on_device,
            compared: false,
            fallback: None,
            users: Vec::new(),
            waited: Duration::ZERO,
        })
    }

    /// The copy of `module` on which to run a batch that is not synchronised.
    pub fn local<M: Module>(&self, module: &M) -> M {
        in_precision(module, self.precision)
    }

    /// Accumulates the gradients of a batch that is not synchronised: PyTorch's `no_sync`. They are added
    /// to those of the next [`Step`], weighted by samples. `grads` are of a mean over this
    /// rank's `samples`; 0 for padding.
    #[doc(alias = "no_sync")]
    pub fn accumulate<M: Module>(&mut self, grads: GradientsParams, module: &M, samples: usize) {
        self.accumulated.add(grads, module, samples);
    }

    /// [`clip_by_global_norm`] of averaged gradients, which does not wait for a device. On one, all ranks take
    /// rank 0's norm.
    ///
    /// # Errors
    /// If the group or the device fails.
    pub(crate) fn clip<M: Module>(
        &self,
        grads: GradientsParams,
        module: &M,
        max_norm: f64,
    ) -> Result<(GradientsParams, Norm)> {
        clip::clip(grads, module, max_norm, |norm| match &self.sender {
            Some(sender) => tensor::broadcast(norm, &sender.group, 0),
            None => Ok(norm),
        })
    }

    /// Time that steps have waited for other ranks' gradients since the last call.
    pub(crate) fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// Number of buckets.
    pub fn buckets(&self) -> usize {
        self.plan.buckets()
    }

    /// Why steps are synchronised after backward although overlap was asked for, if they are.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Whether gradients stay in device memory.
    pub fn on_device(&self) -> bool {
        self.on_device
    }

    /// The current loss scale; 1 except for f16.
    pub fn loss_scale(&self) -> f32 {
        self.scaler.map_or(1.0, LossScaler::scale)
    }

    /// Whether the last step's gradients overflowed f16, so that there are none and the optimizer skips
    /// the step.
    pub fn skipped(&self) -> bool {
        self.scaler.is_some_and(LossScaler::skipped)
    }

    /// The loss scale and the steps since it last changed, for a checkpoint; only of f16.
    pub(crate) fn scaler_state(&self) -> Option<(f32, u32)> {
        self.scaler.map(LossScaler::state)
    }

    /// Restores the loss scale of a checkpoint.
    pub(crate) fn restore_scaler(&mut self, state: Option<(f32, u32)>) {
        if let (Some(scaler), Some(state)) = (&mut self.scaler, state) {
            *scaler = LossScaler::restore(state);
        }
    }

    /// Parameters that were used by some ranks only in the last step, each with their number, and
    /// those that were used by none. Empty in a world of one.
    pub fn unused(&self) -> impl Iterator<Item = (&str, usize)> {
        let world = self.sender.as_ref().map_or(1, |sender| sender.group.world_size());
        let slots = self.plan.slots.iter().zip(&self.users);
        slots.filter(move |(_, users)| **users < world).map(|(slot, users)| (slot.path.as_str(), *users))
    }

    /// Room for every bucket, filled with zeros if there are accumulated gradients to add to.
    fn buffers(&self) -> Vec<Vec<f32>> {
        let lengths = (0..self.plan.buckets()).map(|bucket| self.plan.length(bucket));
        if self.accumulated.is_empty() {
            lengths.map(Vec::with_capacity).collect()
        } else {
            lengths.map(|length| vec![0.0; length]).collect()
        }
    }
}

/// Adds the time that `wait` takes to `sum`.
pub(crate) fn timed<T>(sum: &mut Duration, wait: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = wait();
    *sum += began.elapsed();
    result
}
