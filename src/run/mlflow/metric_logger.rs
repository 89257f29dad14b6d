//! MLflow metric logger for burn-train.

use super::{MlflowRun, RunInfo, Server, Status};
use crate::{
    process::console::Console,
    run::{EvaluatedSet, learner_metrics::LearnerMetrics},
};
use anyhow::Result;
use burn::train::{
    logger::MetricLogger,
    metric::{
        MetricDefinition, NumericEntry,
        store::{EpochSummary, MetricsUpdate, Split},
    },
};
use serde_json::Value;

/// Sends the numeric metrics of a burn-train `Learner` to an MLflow server.
///
/// Names and steps are those of [`TensorBoardLogger`](crate::run::tensorboard::TensorBoardLogger). A thread sends the
/// metrics; a server that is slow or away does not delay training. The run ends when the logger is dropped, as
/// `FAILED` during a panic and as `FINISHED` otherwise.
///
/// [`Trainer`](crate::Trainer) uses [`MlflowRun`] as an [`Observer`](collective::strategy::Observer) instead: a
/// `MetricLogger` gets neither the learning rate nor the step of a resumed run.
///
/// ```no_run
/// # use burn_ddp::run::mlflow::MlflowLogger;
/// # fn configure<M: burn::train::LearnerModel + 'static>(
/// #     training: burn::train::SupervisedTraining<M>,
/// # ) -> anyhow::Result<burn::train::SupervisedTraining<M>> {
/// let params = serde_json::json!({ "lr": 0.02, "batch_size": 48 });
/// let logger = MlflowLogger::create("http://localhost:5000", Some("curves"), "first run", &params)?;
/// let training = training.with_metric_logger(logger);
/// # Ok(training)
/// # }
/// ```
pub struct MlflowLogger {
    run: MlflowRun,
    metrics: LearnerMetrics,
}

impl MlflowLogger {
    /// Starts a run of an experiment, which is the program's name by default.
    ///
    /// The fields of `params` are logged as parameters. Credentials are read from the environment, see [`Server`].
    ///
    /// # Errors
    /// If `uri` is not an HTTP address or contains credentials, or the thread cannot be started.
    pub fn create(uri: &str, experiment: Option<&str>, name: &str, params: &Value) -> Result<Self> {
        let info = RunInfo::new(experiment, name, params);
        let run = MlflowRun::start(Server::new(uri)?, info, EvaluatedSet::Valid, Console::new(true))?;
        Ok(Self { run, metrics: LearnerMetrics::new() })
    }
}

impl MetricLogger for MlflowLogger {
    fn log(&mut self, update: MetricsUpdate, epoch: usize, split: &Split) {
        self.metrics.log(update, epoch, split, |name, step, value| self.run.scalar(&name, step, value));
    }

    fn read_numeric(&mut self, name: &str, epoch: usize, split: &Split) -> Result<Vec<NumericEntry>, String> {
        self.metrics.read_numeric(name, epoch, split)
    }

    fn log_metric_definition(&mut self, definition: MetricDefinition) {
        self.metrics.log_metric_definition(definition);
    }

    fn log_epoch_summary(&mut self, summary: EpochSummary) {
        self.metrics.log_epoch_summary(summary, |name, step, value| self.run.scalar(&name, step, value));
    }
}

impl Drop for MlflowLogger {
    fn drop(&mut self) {
        let status = if std::thread::panicking() { Status::Failed } else { Status::Finished };
        self.run.close(status, vec![]);
    }
}
