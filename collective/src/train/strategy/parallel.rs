//! The strategies for burn-train: one run loop, which computes each batch on one device (`DdpStrategy`) or on several
//! (`DpStrategy`).

use super::{
    Callback, Checkpoints, ComputeBatch, Distributed, LiveRecovery, NoopRenderer, Observer, RankTime,
    RunControl, Snapshot, StepModel, StopRequest, TrainInput, ValidInput, ValidOutput,
    callback::{BurnMetric, Callbacks, MetricCallback},
    compute,
    run::{Run, Stop},
    stragglers::Stragglers,
};
use crate::{
    Error, ProcessGroup, Result, StepOptions,
    data::loader::DistributedLoader,
    dp::{DataParallelConfig, ParallelStep, Replicas},
    train::lr::LrControl,
    train::metric::MetricInfo,
};
use burn::data::dataset::DatasetError;
use burn::tensor::Device;
use burn::train::{
    Learner, LearnerModel, LearningResult, SupervisedLearningStrategy, SupervisedTraining,
    SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents, TrainingStrategy, ValidLoader,
    logger::InMemoryMetricLogger,
    metric::{Adaptor, Metric},
};
use std::sync::{Arc, OnceLock};

/// Data-parallel training with a process (or thread) per device.
///
/// [`launch`](ParallelStrategy::launch) runs a burn-train training with it. Settings must be the same on every rank.
///
/// Its step is that of [`DistributedDataParallel`](crate::DistributedDataParallel).
pub type DdpStrategy<M> = ParallelStrategy<M>;

/// Data-parallel training on several devices of one process, with a thread per device: see
/// [`on_devices`](ParallelStrategy::on_devices).
///
/// The outputs of all replicas are gathered on one device, where the loss of the whole batch is computed: see
/// [`ParallelStep`].
pub type DpStrategy<M> = ParallelStrategy<M>;

/// A burn-train strategy: [`DdpStrategy`] or [`DpStrategy`].
pub struct ParallelStrategy<M: LearnerModel> {
    pub(super) group: ProcessGroup,
    /// This rank's device, with autodiff.
    pub(super) device: Device,
    pub(super) compute: Box<ComputeBatch<M>>,
    pub(super) train: Arc<dyn DistributedLoader<TrainInput<M>>>,
    pub(super) valid: Arc<dyn DistributedLoader<ValidInput<M>>>,
    /// Evaluated at the end only.
    pub(super) test: Option<Arc<dyn DistributedLoader<ValidInput<M>>>>,
    /// Called in this order.
    pub(super) observers: Vec<Arc<dyn Observer>>,
    pub(super) options: StepOptions,
    pub(super) max_steps: Option<usize>,
    pub(super) callbacks: Callbacks<M>,
    pub(super) checkpoints: Option<Checkpoints>,
    pub(super) resume: Option<Snapshot>,
    pub(super) stop: Option<Arc<StopRequest>>,
    pub(super) lr_control: Option<LrControl>,
    pub(super) recovery: Option<Arc<LiveRecovery>>,
    /// Maximum number of batches of an evaluation.
    pub(super) evaluation_batches: Option<usize>,
    /// Decay of the moving average of the weights.
    pub(super) ema: Option<f64>,
    /// Training samples per second of all ranks with devices at their peak.
    pub(super) peak_throughput: Option<f64>,
    /// The error that ended the run, for [`launch`](Self::launch): burn-train's error type has no variant for it.
    failure: Arc<OnceLock<Error>>,
}

impl<M: LearnerModel> ParallelStrategy<M> {
    /// A [`DdpStrategy`]. `device` is this rank's, with or without autodiff.
    ///
    /// The loaders are those of [`ShardedLoader::builder`](crate::data::loader::ShardedLoader::builder), which takes the
    /// data set, the batcher and the settings of Burn's `DataLoaderBuilder`. The loaders of the latter cannot be
    /// divided over ranks.
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
            compute: Box::new(compute::one_device),
            train,
            valid,
            test: None,
            observers: Vec::new(),
            options: StepOptions::default(),
            max_steps: None,
            callbacks: Callbacks::default(),
            checkpoints: None,
            resume: None,
            stop: None,
            lr_control: None,
            recovery: None,
            evaluation_batches: None,
            ema: None,
            peak_throughput: None,
            failure: Arc::default(),
        }
    }

    /// Runs the model's [`ParallelStep`] in place of its `TrainStep` if the precision is not f32.
    ///
    /// The batch, the outputs and the loss then have the right types without code in the model: see
    /// [`precision`](crate::precision).
    pub fn with_parallel_step(self) -> Self
    where
        M: ParallelStep,
    {
        Self { compute: Box::new(compute::split_step), ..self }
    }

    /// A [`DpStrategy`], which runs every step on the devices of `config`. The first of them holds the model and its
    /// optimizer.
    ///
    /// # Errors
    /// If there is no device.
    pub fn on_devices(
        config: DataParallelConfig,
        train: Arc<dyn DistributedLoader<TrainInput<M>>>,
        valid: Arc<dyn DistributedLoader<ValidInput<M>>>,
    ) -> Result<Self>
    where
        M: ParallelStep,
    {
        let Some((device, _)) = config.devices.first() else { return Err(Replicas::<M>::no_device()) };
        let strategy = Self::new(ProcessGroup::solo(), device, train, valid);
        Ok(Self { compute: compute::replica_devices(config), ..strategy })
    }

    /// Observes what every rank computes.
    pub fn with_callback(self, callback: impl Callback<M> + 'static) -> Self {
        self.with_metric_callback([], callback)
    }

    /// Adds a callback that computes these metrics after every evaluation.
    ///
    /// [`Callback::evaluation_done`] returns a number with the name of each. It becomes part of
    /// [`EpochReport::metrics`](super::EpochReport::metrics).
    pub fn with_metric_callback(
        self,
        metrics: impl Into<Vec<MetricInfo>>,
        callback: impl Callback<M> + 'static,
    ) -> Self {
        self.with_callbacks(vec![(metrics.into(), Box::new(callback))])
    }

    /// [`with_metric_callback`](Self::with_metric_callback) for several callbacks.
    pub fn with_callbacks(self, callbacks: Vec<MetricCallback<M>>) -> Self {
        self.callbacks.add(callbacks);
        self
    }

    /// Adds a burn-train metric over the evaluation outputs of the model, joined over ranks. Its
    /// value is in [`EpochReport::logged`](super::EpochReport::logged). Metrics given to `SupervisedTraining::metrics` see each
    /// step's output as [`StepOutput::from_totals`](crate::train::metric::StepOutput::from_totals) makes it from the sums over all ranks.
    pub fn with_metric<T>(self, metric: T) -> Self
    where
        T: Metric + Distributed + 'static,
        ValidOutput<M>: Adaptor<T::Input>,
    {
        self.with_callback(BurnMetric(metric))
    }

    burn_ddp_comm::setters! {
        /// Observes the run.
        with_observer(observer: Arc<dyn Observer>) => observers = vec![observer];

        /// Observes the run with several observers, which are called in order.
        with_observers(observers: Vec<Arc<dyn Observer>>) => observers = observers;

        /// Evaluates `test` once, at the end of a run that is not interrupted.
        ///
        /// The validation set alone then decides about early stopping. Callbacks see the test set only, and
        /// [`Observer::tested`] gets the result.
        with_test(test: Option<Arc<dyn DistributedLoader<ValidInput<M>>>>) => test = test;

        /// Sets accumulation, clipping, precision, gradient synchronisation and the seed of each step.
        ///
        /// burn-train's `SupervisedTraining::grads_accumulation`, if it is set, replaces
        /// [`StepOptions::grad_accum_steps`]. SyncBatchNorm layers of the model are used as they are:
        /// [`StepOptions::sync_batch_norm`] has no effect.
        with_options(options: StepOptions) => options = options;

        /// Ends the run after this many optimizer steps, with an evaluation.
        with_max_steps(max_steps: Option<usize>) => max_steps = max_steps;

        /// Evaluates this many batches of each set at most, for a short run that checks a program.
        with_evaluation_batches(batches: Option<usize>) => evaluation_batches = batches;

        /// Takes checkpoints. All ranks must, or none.
        with_checkpoints(checkpoints: Checkpoints) => checkpoints = Some(checkpoints);

        /// Resumes from a snapshot, the same on every rank: [`Snapshot::share`] distributes it. At the same world size and
        /// batch size, the run continues with the same bits as without the interruption; at another one, with the
        /// remaining samples, in the same order.
        ///
        /// Burn builds the optimizer's state on `Device::default()` before it moves it to this rank's
        /// device. With `BURN_DEVICE=flex` in the environment that is host memory, not the first GPU's.
        with_resume(snapshot: Option<Snapshot>) => resume = snapshot;

        /// Lets callbacks change the learning rate of a schedule that [`LrControl::schedule`] has made.
        with_lr_control(control: LrControl) => lr_control = Some(control);

        /// Evaluates and returns an exponential moving average of the weights, `decay` × average + (1 − `decay`) × weights
        /// after every optimizer step.
        with_ema(decay: Option<f64>) => ema = decay;

        /// Logs the utilisation of the devices after every epoch: its samples per second relative to `peak`, those that all
        /// ranks would train with every device at its peak.
        with_peak_throughput(peak: Option<f64>) => peak_throughput = peak;

        /// Keeps the state of this rank when its group fails, so that the run continues in a new group with
        /// [`with_resume`](Self::with_resume): see [`LiveState::share`](super::LiveState::share). Not with a sharded optimizer
        /// or local SGD.
        ///
        /// The state is kept for gradients that are averaged in host memory. On a GPU with NCCL, a step that fails on the
        /// device may have changed the parameters.
        with_live_recovery(recovery: Option<Arc<LiveRecovery>>) => recovery = recovery;

        /// Stops all ranks together when any rank is signal to.
        with_stop(request: Arc<StopRequest>) => stop = Some(request);
    }
}

impl<M: StepModel> ParallelStrategy<M> {
    /// Runs `training` with this strategy, in place of `SupervisedTraining::launch`. Every rank must call it.
    ///
    /// Rank 0 alone shows progress and the summary and writes burn-train's log files. Other metric loggers of
    /// `training` are used on every rank that registers them.
    ///
    /// # Errors
    /// The error of a rank, the group, a device or a file that ended the run.
    pub fn launch(self, training: SupervisedTraining<M>, learner: Learner<M>) -> Result<LearningResult<M>> {
        let training = match self.group.rank() {
            0 => training,
            _ => training
                .renderer(Box::new(NoopRenderer))
                .with_application_logger(None)
                .with_metric_logger(InMemoryMetricLogger::default()),
        };
        let failure = self.failure.clone();
        let result =
            training.with_training_strategy(TrainingStrategy::Custom(Arc::new(self))).launch(learner);
        match (failure.get(), &result.error) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(error)) => Err(Error::Invalid(format!("training stopped: {error}"))),
            (None, None) => Ok(result),
        }
    }
}

impl<M: StepModel> SupervisedLearningStrategy<M> for ParallelStrategy<M> {
    fn fit(
        &self,
        components: TrainingComponents<M>,
        mut learner: Learner<M>,
        // burn-train's handles of the same loaders, which cannot start at any epoch and step.
        _train: TrainLoader<M>,
        _valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        learner.fork(&self.device);
        let interrupter = components.interrupter.clone();
        let fail = |error: Error| {
            interrupter.stop(Some(&error.to_string()));
            interrupter.fail(DatasetError::new(error.clone()));
            let _ = self.failure.set(error);
        };
        let begun = self.begin(&mut learner, &components, starting_epoch);
        let (engine, position, average) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                fail(error);
                return (learner.model(), components.event_processor);
            }
        };
        let mut run = Run {
            settings: self,
            learner,
            components,
            engine,
            warned: false,
            warned_of_skips: false,
            position,
            time: RankTime::default(),
            control: RunControl::default(),
            stopped: false,
            average,
            round: None,
            stragglers: Stragglers::default(),
        };
        match run.run() {
            Ok(()) | Err(Stop::Interrupted) => {}
            Err(Stop::Requested(signal)) => {
                if let Some(request) = &self.stop {
                    request.set(signal);
                }
                // So that burn-train's renderer does not take the run for a finished one.
                interrupter.stop(None);
            }
            Err(Stop::Failed(error)) => {
                run.keep_live_state();
                fail(error);
            }
        }
        (run.evaluated_model(), run.components.event_processor)
    }
}
