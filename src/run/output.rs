//! Output of a run on rank 0: folder, tables, events and checkpoints.

use super::{
    EvaluatedSet,
    checkpoint::{CheckpointStore, CheckpointWriter, Identity, ResumePoint},
    folder::{RunFolder, Summary},
    log::RunLog,
    report,
    tensorboard::EventLog,
};
use crate::{
    config::{Config, TrainerArgs},
    process::{console::Console, stop},
};
use anyhow::Result;
use burn::module::Module;
use collective::strategy::CheckpointSink;
use std::{sync::Arc, time::Instant};

/// Writers of a run folder, new or resumed.
pub struct Output {
    pub folder: RunFolder,
    pub log: Arc<RunLog>,
    pub events: Arc<EventLog>,
    pub checkpoints: Arc<dyn CheckpointSink>,
    began: Instant,
    /// Whether this process has created the run.
    is_new: bool,
}

impl Output {
    /// Opens the folder of a new or resumed run.
    ///
    /// `began` is the start time of this process.
    ///
    /// # Errors
    /// If the folder already contains another run or cannot be written to.
    pub fn open(
        args: &TrainerArgs,
        config: &Config,
        found: Option<&ResumePoint>,
        identity: Identity,
        began: Instant,
    ) -> Result<Self> {
        let folder = match found {
            Some(found) => RunFolder::reopen(found.run.clone())?,
            None => RunFolder::create(args.run_dir.clone())?,
        };
        let (monitor, set) = (args.checkpoints.monitor, EvaluatedSet::of(config));
        let checkpoint = found.and_then(|found| found.checkpoint.as_ref());
        let log = Arc::new(match checkpoint {
            Some(checkpoint) => {
                let (manifest, position) = (&checkpoint.manifest, &checkpoint.manifest.position);
                CheckpointStore::of(folder.path()).set_aside_after(position.step)?;
                // An epoch that --max-steps has cut short was evaluated. If it is resumed, its row is written later.
                let cut = position.evaluated && args.max_steps.is_some_and(|max| position.step >= max);
                let epoch = if cut { position.epoch } else { position.epoch - 1 };
                RunLog::resume(folder.path(), monitor, set, manifest.progress.clone(), position.step, epoch)?
            }
            None => RunLog::create(folder.path(), monitor, set)?,
        });
        let step = checkpoint.map_or(0, |checkpoint| checkpoint.manifest.position.step);
        let events = Arc::new(EventLog::create(folder.path(), step, set)?);
        let checkpoints =
            CheckpointWriter::new(folder.path(), log.clone(), events.clone(), config, identity, began);
        let is_new = checkpoint.is_none() && !folder.holds_run();
        // Last, because this file marks the folder as a run.
        folder.write_config(config)?;
        Ok(Self { folder, log, events, checkpoints: Arc::new(checkpoints), began, is_new })
    }

    /// Prints the command that shows the run in TensorBoard.
    pub fn print_tensorboard_hint(&self, console: Console) {
        let folder = EventLog::folder(self.folder.path());
        console.print(&format!("watch     tensorboard --logdir {}", folder.display()));
    }

    /// Writes the report of a run stopped by a signal and prints how to resume it.
    ///
    /// # Errors
    /// If a row of the log or an event cannot be written.
    pub fn finish_stopped(&self, signal: u8, console: Console) -> Result<()> {
        let (name, step) = (stop::name(signal.into()), self.log.progress()?.step);
        self.events.flush()?;
        let path = self.folder.path().display();
        self.report(console);
        console.print(&format!("stopped by {name} after step {step}; resume with --resume {path}"));
        Ok(())
    }

    /// Writes model, summary and report, and prints the result.
    ///
    /// # Errors
    /// If the model, the summary, an event or a row of the log cannot be written.
    pub fn finish<M: Module>(
        &self,
        model: M,
        config: &Config,
        transport: &str,
        console: Console,
    ) -> Result<()> {
        let summary = self.summary(config, transport)?;
        self.events.flush()?;
        self.folder.write_model(model)?;
        self.folder.write_summary(&summary)?;
        match summary.test_accuracy {
            Some(accuracy) => console.print(&format!("test accuracy {:.2} %", 100.0 * accuracy)),
            None => console.print(&format!("test loss     {:.6}", summary.test_loss)),
        }
        console.print(&format!("run folder    {}", self.folder.path().display()));
        self.report(console);
        Ok(())
    }

    /// Writes `report.html`. Failure is logged as a warning.
    fn report(&self, console: Console) {
        match report::write(self.folder.path()) {
            Ok(page) => console.print(&format!("report        {}", page.display())),
            Err(error) => console.warn(&format!("the report was not written: {error:#}")),
        }
    }

    /// Computes the summary from the log.
    fn summary(&self, config: &Config, transport: &str) -> Result<Summary> {
        let progress = self.log.progress()?;
        let (tested, valid) = match progress.tested {
            Some(tested) => (tested, Some(progress.evaluation)),
            None => (progress.evaluation, None),
        };
        Ok(Summary {
            test_accuracy: tested.accuracy,
            test_loss: tested.loss,
            valid_accuracy: valid.and_then(|valid| valid.accuracy),
            valid_loss: valid.map(|valid| valid.loss),
            samples_per_second: progress.samples as f64 / progress.training.as_secs_f64().max(1e-9),
            world_size: config.world_size,
            mode: config.mode,
            device: config.device,
            transport: transport.into(),
            dataset: config.dataset.as_ref().map(|dataset| dataset.name.clone()),
            epochs: progress.epoch,
            steps: progress.step,
            seconds: progress.seconds + self.began.elapsed().as_secs_f64(),
            parameter_digest: progress.digest,
        })
    }
}

impl Drop for Output {
    /// Removes the files of a new run that failed before its first step.
    ///
    /// The run can then be started again with the same folder.
    fn drop(&mut self) {
        if self.is_new && self.log.progress().is_ok_and(|progress| progress.step == 0) {
            self.events.remove();
            self.folder.remove();
        }
    }
}
