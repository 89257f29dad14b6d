//! Output of a run on rank 0: folder, tables, events and checkpoints.

use super::{
    EvaluatedSet, Evaluation,
    checkpoint::{CheckpointStore, CheckpointWriter, Manifest, ResumePoint},
    folder::{CONFIG, RunFolder, Summary},
    log::RunLog,
    mlflow::{self, MlflowRun, RunInfo, Server},
    report,
    tensorboard::EventLog,
    tracker::Status,
    weights,
};
use crate::{
    config::{Config, learning_rate::Plateau},
    process::{console::Console, stop},
};
use anyhow::Result;
use burn::store::ModuleSnapshot;
use collective::strategy::{CheckpointSink, EpochReport, Observer, RunControl, Snapshot};
use std::{sync::Arc, time::Instant};

/// Files that a tracker gets, small ones first.
const ARTIFACTS: [&str; 5] =
    ["config.json", "summary.json", "confusion_matrix.csv", "report.html", "model.bpk"];

/// Writers of a run folder, new or resumed.
pub struct Output {
    pub folder: RunFolder,
    pub events: Arc<EventLog>,
    log: Arc<RunLog>,
    writer: CheckpointWriter,
    tracker: Option<Arc<MlflowRun>>,
    config: Config,
    began: Instant,
    console: Console,
    /// Whether this process has created the run.
    is_new: bool,
}

impl Output {
    /// Opens the folder of a new or resumed run.
    ///
    /// `last_step` is the optimizer step after which training ends within an epoch, and `began` the start time of this
    /// process.
    ///
    /// # Errors
    /// If the folder already contains another run or cannot be written to.
    pub fn open(
        config: &Config,
        found: Option<&ResumePoint>,
        last_step: Option<usize>,
        began: Instant,
        console: Console,
    ) -> Result<Self> {
        let folder = match found {
            Some(found) => RunFolder::reopen(found.run.clone())?,
            None => RunFolder::create(config.args.run_dir.clone())?,
        };
        let (monitor, set) = (config.monitored()?, EvaluatedSet::from_config(config));
        let checkpoint = found.and_then(|found| found.manifest.as_ref());
        let mut resumed = None;
        if let Some(Manifest { position, progress, .. }) = checkpoint {
            CheckpointStore::in_run(folder.path()).set_aside_after(position.step)?;
            // The last epoch may have been cut short and evaluated. If it is resumed, its row is written later.
            let cut = position.evaluated && last_step.is_some_and(|last| position.step >= last);
            let epoch = if cut { position.epoch } else { position.epoch - 1 };
            resumed = Some((progress.clone(), position.step, epoch));
        }
        let log =
            Arc::new(RunLog::open(folder.path(), &config.program.train_metrics, monitor, set, resumed)?);
        let step = checkpoint.map_or(0, |checkpoint| checkpoint.position.step);
        let events = Arc::new(EventLog::create(folder.path(), step, set)?);
        let is_new = checkpoint.is_none() && !folder.holds_run();
        // Last, because this file marks the folder as a run.
        folder.write_json(CONFIG, config)?;
        let tracker = start_tracker(config, &folder, found.is_some(), console)?;
        let config = config.clone();
        let writer = CheckpointWriter::default();
        Ok(Self { folder, events, log, writer, tracker, config, began, console, is_new })
    }

    /// Observers that write the run's metrics.
    pub fn observers(&self) -> Vec<Arc<dyn Observer>> {
        let mut observers: Vec<Arc<dyn Observer>> = vec![self.log.clone(), self.events.clone()];
        observers.extend(self.tracker.clone().map(|tracker| tracker as _));
        observers
    }

    /// Ends the tracking with `status` and those of the files `names` that exist.
    fn close_tracker(&self, status: Status, names: &[&str]) {
        let Some(tracker) = &self.tracker else { return };
        let files = names.iter().map(|name| self.folder.path().join(name));
        tracker.close(status, files.filter(|path| path.is_file()).collect());
    }

    /// Prints the command that shows the run in TensorBoard, and the MLflow server.
    pub fn print_tracking_hints(&self) {
        let folder = EventLog::folder(self.folder.path());
        self.console.print(&format!("watch     tensorboard --logdir {}", folder.display()));
        if let Some(tracker) = &self.tracker {
            self.console.print(&format!("mlflow    {}", tracker.destination()));
        }
    }

    /// Writes the report of a run stopped by a signal and prints how to resume it.
    pub fn finish_stopped(&self, signal: u8) -> Result<()> {
        let (name, step) = (stop::name(signal.into()), self.log.progress()?.step);
        self.events.flush()?;
        self.report(Status::Killed);
        let then = match self.config.args.fast_dev_run {
            Some(_) => "its files are removed".into(),
            None => format!("resume with --resume {}", self.folder.path().display()),
        };
        self.console.print(&format!("stopped by {name} after step {step}; {then}"));
        Ok(())
    }

    /// Writes model, summary and report, prints the result, and returns the summary.
    pub fn finish<M: ModuleSnapshot>(&self, model: &M, transport: &str) -> Result<Summary> {
        let (summary, console, metrics) =
            (self.summary(transport)?, self.console, &self.config.program.metrics);
        self.events.flush()?;
        weights::save(model, &self.folder.path().join("model.bpk"), "")?;
        self.folder.write_json("summary.json", &summary)?;
        // The loss of a model with other metrics is in the line of the last epoch.
        for metric in &metrics[metrics.len().min(2).saturating_sub(1)..] {
            let name = format!("test_{}", metric.name);
            let value = summary.metrics.get(&name).copied().flatten().unwrap_or(f64::NAN);
            let text =
                if metric.percent { metric.text(value) } else { format!("{value:.6} {}", metric.unit) };
            console.print(format!("{:<13} {text}", name.replacen('_', " ", 1)).trim_end());
        }
        console.print(&format!("run folder    {}", self.folder.path().display()));
        self.report(Status::Finished);
        Ok(summary)
    }

    /// Writes `report.html` and ends the tracking. Failure is logged as a warning.
    fn report(&self, status: Status) {
        match report::write(self.folder.path()) {
            Ok(page) => self.console.print(&format!("report        {}", page.display())),
            Err(error) => self.console.warn(&format!("the report was not written: {error:#}")),
        }
        self.close_tracker(status, &ARTIFACTS);
    }

    /// Computes the summary from the log.
    fn summary(&self, transport: &str) -> Result<Summary> {
        let (config, progress) = (&self.config, self.log.progress()?);
        let (tested, valid) = match (progress.tested, EvaluatedSet::from_config(config)) {
            (Some(tested), EvaluatedSet::Valid) => (tested, progress.evaluation),
            (tested, _) => (tested.unwrap_or(progress.evaluation), Evaluation::default()),
        };
        let of_set = |set: &'static str, of: Evaluation| {
            of.into_iter().map(move |(name, value)| (format!("{set}_{name}"), value))
        };
        Ok(Summary {
            metrics: of_set("test", tested).chain(of_set("valid", valid)).collect(),
            callbacks: progress.callbacks,
            samples_per_second: progress.samples as f64 / progress.training.as_secs_f64().max(1e-9),
            world_size: config.world_size,
            mode: config.mode,
            device: config.device,
            transport: transport.into(),
            dataset: config.program.dataset.as_ref().map(|dataset| dataset.name.clone()),
            epochs: progress.epoch,
            steps: progress.step,
            seconds: progress.seconds + self.began.elapsed().as_secs_f64(),
            parameter_digest: progress.digest,
        })
    }

    /// Starts to write a checkpoint, after the one before is written.
    fn start_checkpoint(&self, snapshot: Snapshot) -> Result<()> {
        // Before the log's next rows, which the checkpoint does not contain.
        let mut progress = self.log.progress()?;
        progress.seconds += self.began.elapsed().as_secs_f64();
        let (log, events, config) = (self.log.clone(), self.events.clone(), self.config.clone());
        let store = CheckpointStore::in_run(self.folder.path());
        self.writer.start(move || {
            // A run resumed from this checkpoint keeps its rows, so they must be on disk first.
            log.sync()?;
            events.flush()?;
            let manifest = Manifest::new(&snapshot, &config, progress)?;
            store.write(&manifest, &snapshot, config.args.checkpoints.keep_last)
        })
    }
}

impl CheckpointSink for Output {
    fn save(&self, snapshot: Snapshot) -> Result<(), String> {
        self.start_checkpoint(snapshot).map_err(|error| format!("{error:#}"))
    }

    fn flush(&self) -> Result<(), String> {
        self.writer.wait().map_err(|error| format!("{error:#}"))
    }

    fn best(&self) -> Result<Option<Snapshot>, String> {
        self.flush()?;
        CheckpointStore::in_run(self.folder.path()).best().map_err(|error| format!("{error:#}"))
    }

    fn epoch_done(&self, _: &EpochReport, control: &mut RunControl) {
        let args = &self.config.args;
        // The log observes the report first. `save` reports its write errors.
        if let Some(reason) = args.checkpoints.early_stop.and_then(|patience| self.log.early_stop(patience)) {
            control.stop(reason);
        }
        let plateau = args.rate.reduce_lr_on_plateau;
        if let Some(Plateau { factor, .. }) = plateau.filter(|plateau| self.log.is_plateau(plateau.patience))
        {
            control.scale_lr(factor);
        }
    }
}

/// Starts the tracker of a new or resumed run, if there is one.
///
/// # Errors
/// As for [`Server::check`], or if a thread cannot be started.
fn start_tracker(
    config: &Config,
    folder: &RunFolder,
    is_resumed: bool,
    console: Console,
) -> Result<Option<Arc<MlflowRun>>> {
    let Some(uri) = &config.args.mlflow else { return Ok(None) };
    let mut settings = serde_json::to_value(config)?;
    // Flags repeat the settings, and metrics are no settings.
    settings
        .as_object_mut()
        .map(|settings| ["flags", "metrics", "train_metrics"].map(|name| settings.remove(name)));
    let path = folder.path().canonicalize().unwrap_or_else(|_| folder.path().into());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if !is_resumed {
        // A run that failed before its first step may have left it.
        let _ = std::fs::remove_file(path.join(mlflow::RUN_FILE));
    }
    let experiment = config.args.mlflow_experiment.as_deref();
    let info = RunInfo::new(experiment, &name, &settings, Some(&path));
    let (server, set) = (Server::new(uri)?, EvaluatedSet::from_config(config));
    Ok(Some(Arc::new(MlflowRun::start(server, info, set, console)?)))
}

impl Drop for Output {
    /// Removes the files of a new run that failed before its first step.
    ///
    /// The run can then be started again with the same folder.
    fn drop(&mut self) {
        // The run has failed already, if there is an error that was not reported.
        let _ = self.writer.wait();
        // Has no effect if the run has finished.
        self.close_tracker(Status::Failed, &[]);
        if self.is_new && self.log.progress().is_ok_and(|progress| progress.step == 0) {
            self.events.remove();
            self.folder.remove();
        }
    }
}
