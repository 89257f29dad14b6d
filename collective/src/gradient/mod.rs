//! Gradients of all ranks made one, while backward still runs.
//!
//! A [`Reducer`] cuts a model's gradients into buckets, in reverse field order. In a [`Step`] the
//! model is watched: the moment a gradient is final, it is written into its bucket, and the moment
//! a bucket is full, it is reduced in the background, in index order, while backward goes on to the
//! layers below (Li et al. 2020, "PyTorch Distributed", arXiv 2006.15704). Where that does not
//! work, gradients are taken when backward is over, with the same sums, bit for bit:
//!
//! - what cannot be watched (parameters under a reparameterization of their own, on a second
//!   device, unused ones) is taken at the end;
//! - a step that runs backward twice, or changes gradients after backward, is noticed, done again
//!   without overlap, and so are all later ones; [`Reducer::fallback`] says why.
//!
//! Where the group exchanges data on the ranks' devices ([`ProcessGroup::attach`]), buckets stay in
//! device memory, and are taken when backward has been launched; the device orders the rest.
//!
//! A parameter that is used on no rank gets no gradient, as on a single device. One that is used on
//! some contributes zeros on the others. This is what PyTorch's `find_unused_parameters` asks for; here
//! it is always so, because the count of ranks that used a parameter travels in a message that is sent
//! anyway.

mod accumulate;
pub(crate) mod buckets;
mod clip;
mod flight;
mod hook;
mod host;
mod link;
pub(crate) mod on_device;
mod power_sgd;
mod step;
mod top_k;
mod visit;
mod watch;

pub use buckets::BucketSizes;
pub use clip::clip_by_global_norm;
pub use hook::{Bucket, BucketParameter, CommHook, HalfPrecision};
pub use power_sgd::PowerSgd;
pub use step::Step;
pub use top_k::TopK;

use crate::{
    ProcessGroup, Result,
    precision::{LossScaler, Precision},
};
use accumulate::Carry;
use buckets::Plan;
use burn::module::Module;
use burn::optim::GradientsParams;
use link::Link;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use watch::Ladder;

/// What can be chosen about a [`Reducer`].
#[derive(Clone, Debug)]
pub struct ReducerOptions {
    /// How much is sent at once.
    pub buckets: BucketSizes,
    /// Whether to communicate while backward runs.
    pub overlap: bool,
    /// How a bucket is reduced; `None` adds up in f32.
    pub hook: Option<Arc<dyn CommHook>>,
    /// What forward and backward compute with.
    pub precision: Precision,
}

impl Default for ReducerOptions {
    /// PyTorch's bucket sizes, with overlap, without a hook, in f32.
    fn default() -> Self {
        Self { buckets: BucketSizes::default(), overlap: true, hook: None, precision: Precision::F32 }
    }
}

/// Makes every rank's gradients those of the mean over the global batch.
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
    plan: Arc<Plan>,
    /// A group of its own, so that other collectives may be called during backward, by SyncBatchNorm
    /// for one, without an order between them and the buckets. `None` in a world of one.
    link: Option<Link>,
    carry: Carry,
    ladder: Arc<Ladder>,
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
    /// For the trainable parameters of `module`. Every rank of `group` must call it, each on the thread
    /// that trains.
    ///
    /// # Errors
    /// If the group fails.
    pub fn new<M: Module>(module: &M, group: &ProcessGroup, options: ReducerOptions) -> Result<Self> {
        let ReducerOptions { buckets, overlap, hook, precision } = options;
        let link = match group.world_size() {
            1 => None,
            _ => Some(Link { group: group.split(0, group.rank() as i64)?, hook }),
        };
        // A hook works on the host.
        let on_device =
            link.as_ref().is_some_and(|link| link.group.device().is_some() && link.hook.is_none());
        // A small first bucket is for an early start, of which the device has none.
        let first = if on_device { buckets.first.max(buckets.rest) } else { buckets.first };
        Ok(Self {
            plan: Arc::new(Plan::new(module, BucketSizes { first, ..buckets })),
            link,
            carry: Carry::default(),
            ladder: Arc::default(),
            precision,
            scaler: (precision == Precision::F16).then(LossScaler::start),
            overlap: overlap && !on_device,
            on_device,
            compared: false,
            fallback: None,
            users: Vec::new(),
            waited: Duration::ZERO,
        })
    }

    /// The copy of `module` on which to run a batch that is not synchronised.
    pub fn local<M: Module>(&self, module: &M) -> M {
        watch::watch(module, None, self.precision)
    }

    /// Keeps the gradients of a batch that is not synchronised: PyTorch's `no_sync`. They are added
    /// to those of the next [`Step`], each weighted by its samples. `grads` are of a mean over this
    /// rank's `samples`; 0 for a batch that only keeps this rank in step.
    #[doc(alias = "no_sync")]
    pub fn accumulate<M: Module>(&mut self, grads: GradientsParams, module: &M, samples: usize) {
        self.carry.add(grads, module, samples);
    }

    /// Begins a synchronised step. `samples` are this rank's in it, 0 if it only keeps in step.
    /// `global_samples` are those of all ranks, with all that was accumulated since the last step.
    ///
    /// # Errors
    /// If gradients that were accumulated cannot be read from their device.
    pub fn step<M: Module>(&mut self, module: &M, samples: usize, global_samples: usize) -> Result<Step<'_>> {
        Step::begin(self, module, samples, global_samples)
    }

    /// How long steps have waited for other ranks' gradients since this was last asked.
    pub(crate) fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// Buckets in a step.
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

    /// What losses are scaled by at present; 1 except for f16.
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

    /// Goes on with a loss scale from a checkpoint.
    pub(crate) fn restore_scaler(&mut self, state: Option<(f32, u32)>) {
        if let (Some(scaler), Some(state)) = (&mut self.scaler, state) {
            *scaler = LossScaler::restore(state);
        }
    }

    /// Parameters that were used by some ranks only in the last step, each with their number, and
    /// those that were used by none. Empty in a world of one.
    pub fn unused(&self) -> impl Iterator<Item = (&str, usize)> {
        let world = self.link.as_ref().map_or(1, |link| link.group.world_size());
        let slots = self.plan.slots.iter().zip(&self.users);
        slots.filter(move |(_, users)| **users < world).map(|(slot, users)| (slot.path.as_str(), *users))
    }

    /// Room for every bucket, and zeros in it if something was carried over, to which gradients are added.
    fn buffers(&self) -> Vec<Vec<f32>> {
        let lengths = (0..self.plan.buckets()).map(|bucket| self.plan.length(bucket));
        if self.carry.is_empty() {
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
