//! `DistributedDataParallel`: a replica and an optimizer on every rank, gradients averaged after
//! each backward pass. A world of one is the single-device case, not a special one.

use super::{
    Callback, Checkpoints, Distributed, Observer, Position, RankTime, Snapshot, StopRequest, TrainInput,
    TrainedOutput, ValidInput, ValidOutput,
    callback::{Callbacks, OfMetric},
    run::{Run, Stop},
};
use crate::{
    Error, ProcessGroup, Result,
    data_parallel::{DataParallel, DataParallelConfig, ParallelStep},
    gradient::{Reducer, ReducerOptions},
    loader::DistributedLoader,
    metric::StepOutput,
};
use burn::tensor::Device;
use burn::train::{
    Learner, LearnerModel, SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader,
    TrainOutput, TrainStep, TrainingComponents, ValidLoader,
    metric::{Adaptor, Metric},
};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU8, Ordering},
};

/// Data-parallel training with a process (or thread) per device.
///
/// Give it to burn-train as `TrainingStrategy::Custom(Arc::new(ddp))`, the same on every rank.
pub struct DistributedDataParallel<M: LearnerModel> {
    pub(super) group: ProcessGroup,
    pub(super) device: Device,
    pub(super) train: Arc<dyn DistributedLoader<TrainInput<M>>>,
    pub(super) valid: Arc<dyn DistributedLoader<ValidInput<M>>>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) reducer: ReducerOptions,
    accumulation: Option<usize>,
    pub(super) clip: Option<f64>,
    pub(super) max_steps: Option<usize>,
    pub(super) non_finite_loss: bool,
    /// Forward and backward over one batch.
    pub(super) step: StepFn<M>,
    devices: usize,
    pub(super) callbacks: Mutex<Callbacks<M>>,
    pub(super) checkpoints: Option<Checkpoints>,
    pub(super) resume: Option<Snapshot>,
    pub(super) seed: Option<u64>,
    pub(super) stop: Option<StopRequest>,
    stopped: AtomicU8,
    failure: Mutex<Option<Error>>,
}

type StepFn<M> = Box<dyn Fn(&M, TrainInput<M>) -> Result<TrainOutput<TrainedOutput<M>>> + Send + Sync>;

struct Silent;
impl Observer for Silent {}

impl<M: LearnerModel> DistributedDataParallel<M> {
    /// `device` is this rank's own, with or without autodiff.
    pub fn new(
        group: ProcessGroup,
        device: &Device,
        train: Arc<dyn DistributedLoader<TrainInput<M>>>,
        valid: Arc<dyn DistributedLoader<ValidInput<M>>>,
    ) -> Self {
        let device = if device.is_autodiff() { device.clone() } else { device.clone().autodiff() };
        Self {
            group,
            device,
            train,
            valid,
            observer: Arc::new(Silent),
            reducer: ReducerOptions::default(),
            accumulation: None,
            clip: None,
            max_steps: None,
            non_finite_loss: false,
            step: Box::new(|model, batch| Ok(TrainStep::step(model, batch))),
            devices: 1,
            callbacks: Mutex::default(),
            checkpoints: None,
            resume: None,
            seed: None,
            stop: None,
            stopped: AtomicU8::new(0),
            failure: Mutex::new(None),
        }
    }

    /// Follows the run.
    pub fn with_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }

    /// Follows the run from what every rank computes.
    pub fn with_callback(mut self, callback: impl Callback<M> + 'static) -> Self {
        let callbacks = self.callbacks.get_mut().unwrap_or_else(PoisonError::into_inner);
        callbacks.push(Box::new(callback));
        self
    }

    /// A burn-train metric over the evaluation outputs as the model gives them, joined over ranks. Its
    /// value goes to [`Observer::found`]. Metrics given to `SupervisedTraining::metrics` see each
    /// step's output as [`StepOutput::from_totals`] makes it from the sums over all ranks.
    pub fn with_metric<T>(self, metric: T) -> Self
    where
        T: Metric + Distributed + 'static,
        ValidOutput<M>: Adaptor<T::Input>,
    {
        self.with_callback(OfMetric(metric))
    }

    /// How gradients are synchronised.
    pub fn with_reducer(mut self, reducer: ReducerOptions) -> Self {
        self.reducer = reducer;
        self
    }

    /// Makes an optimizer step of `batches` batches, of which only the last synchronises. The last
    /// step of an epoch takes what is left. Default: what burn-train's
    /// `SupervisedTraining::grads_accumulation` says, or 1.
    ///
    /// # Panics
    /// If `batches` is 0.
    pub fn with_accumulation(mut self, batches: usize) -> Self {
        assert!(batches > 0, "an optimizer step needs at least 1 batch");
        self.accumulation = Some(batches);
        self
    }

    /// Clips the averaged gradients, all together, to this norm: see
    /// [`clip_by_global_norm`](crate::gradient::clip_by_global_norm).
    pub fn with_clip(mut self, max_norm: Option<f64>) -> Self {
        self.clip = max_norm;
        self
    }

    /// Ends the run after this many optimizer steps, with an evaluation.
    pub fn with_max_steps(mut self, max_steps: Option<usize>) -> Self {
        self.max_steps = max_steps;
        self
    }

    /// Whether to train on when the loss or the norm of the gradients to clip is NaN or infinite. By
    /// default the run then ends with [`Error::NonFinite`] on every rank.
    pub fn allow_non_finite_loss(mut self, allow: bool) -> Self {
        self.non_finite_loss = allow;
        self
    }

    /// Runs every step on several devices of this process, a thread each: see
    /// [`DataParallel`]. The first must be this strategy's own device. Only for a world of one.
    pub fn with_devices(mut self, setup: DataParallelConfig) -> Self
    where
        M: ParallelStep,
    {
        self.devices = setup.devices.len();
        let replicas: Mutex<Option<DataParallel<M>>> = Mutex::new(None);
        self.step = Box::new(move |model, batch| {
            let mut replicas = replicas.lock().unwrap_or_else(PoisonError::into_inner);
            let replicas = match &mut *replicas {
                Some(replicas) => replicas,
                // The first step is the first to know the module.
                none => none.insert(DataParallel::new(model, &setup)?),
            };
            replicas.step(model, batch)
        });
        self
    }

    /// What the run was asked, if that is why it ended: see [`with_stop`](Self::with_stop).
    pub fn stopped(&self) -> Option<u8> {
        Some(self.stopped.load(Ordering::Relaxed)).filter(|asked| *asked > 0)
    }

    /// The collective error that ended the run, if one did: burn-train has no place for it.
    pub fn failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<M: LearnerModel> DistributedDataParallel<M>
where
    TrainedOutput<M>: StepOutput,
    ValidOutput<M>: StepOutput,
{
    /// Verifies that the ranks can train together. Returns what a run starts with: the reducer, the
    /// batches an optimizer step, and the position.
    fn begin(
        &self,
        learner: &mut Learner<M>,
        components: &TrainingComponents<M>,
        starting_epoch: usize,
    ) -> Result<(Reducer, usize, Position)> {
        let world = self.group.world_size();
        if self.devices > 1 && world > 1 {
            return Err(Error::Invalid(format!(
                "a process of a world of {world} uses one device, but was given {}: start a process for each",
                self.devices
            )));
        }
        self.admit_callbacks()?;
        let mut position = Position { epoch: starting_epoch, ..Position::start() };
        if let Some(snapshot) = &self.resume {
            // First, because it brings the identities of parameters with it.
            snapshot.apply(learner)?;
            position = snapshot.position.clone();
        }
        let accumulation = self.accumulation.or(components.grad_accumulation).unwrap_or(1).max(1);
        let settings = self.settings(learner, components.num_epochs, accumulation, &position);
        self.group.verify_settings(&settings)?;
        let mut reducer = Reducer::new(&learner.model(), &self.group, self.reducer.clone())?;
        reducer.restore_scaler(position.loss_scale);
        Ok((reducer, accumulation, position))
    }
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for DistributedDataParallel<M>
where
    TrainedOutput<M>: StepOutput,
    ValidOutput<M>: StepOutput,
{
    fn fit(
        &self,
        components: TrainingComponents<M>,
        mut learner: Learner<M>,
        // burn-train's own handles on the same loaders; ours can be asked for any epoch.
        _train: TrainLoader<M>,
        _valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        learner.fork(&self.device);
        let interrupter = components.interrupter.clone();
        let fail = |error: Error| {
            interrupter.stop(Some(&error.to_string()));
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        };
        let begun = self.begin(&mut learner, &components, starting_epoch);
        let (reducer, accumulation, position) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                fail(error);
                return (learner.model(), components.event_processor);
            }
        };
        let time = RankTime::default();
        let mut run = Run {
            ddp: self,
            learner,
            components,
            reducer,
            accumulation,
            warned: false,
            warned_of_skips: false,
            position,
            time,
        };
        match run.epochs() {
            Ok(()) | Err(Stop::Interrupted) => {}
            Err(Stop::Asked(asked)) => {
                self.stopped.store(asked, Ordering::Relaxed);
                // So that burn-train's renderer does not take the run for a finished one.
                interrupter.stop(None);
            }
            Err(Stop::Failed(error)) => fail(error),
        }
        (run.learner.model(), run.components.event_processor)
    }
}
