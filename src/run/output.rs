//! What rank 0 leaves behind: the run's folder, its tables and its checkpoints.

use super::{
    EvaluatedSet,
    checkpoint::{FolderKeeper, Found, Identity, Store},
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

/// A run's folder, new or gone on with.
pub struct Output {
    pub folder: RunFolder,
    pub log: Arc<RunLog>,
    pub events: Arc<EventLog>,
    pub keeper: Arc<dyn CheckpointSink>,
    began: Instant,
    /// Whether the run begins with this process.
    is_new: bool,
}

impl Output {
    /// `began` is when this process did.
    ///
    /// # Errors
    /// If the folder holds another run, or cannot be written to.
    pub fn open(
        args: &TrainerArgs,
        config: &Config,
        found: Option<&Found>,
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
                Store::of(folder.path()).set_aside_after(position.step)?;
                // An epoch that --max-steps cut is evaluated, too; if it goes on, it has a row later.
                let cut = position.evaluated && args.max_steps.is_some_and(|max| position.step >= max);
                let epoch = if cut { position.epoch } else { position.epoch - 1 };
                RunLog::resume(folder.path(), monitor, set, manifest.progress.clone(), position.step, epoch)?
            }
            None => RunLog::create(folder.path(), monitor, set)?,
        });
        let step = checkpoint.map_or(0, |checkpoint| checkpoint.manifest.position.step);
        let events = Arc::new(EventLog::create(folder.path(), step, set)?);
        let keeper = FolderKeeper::new(folder.path(), log.clone(), events.clone(), config, identity, began);
        let is_new = checkpoint.is_none() && !folder.holds_run();
        // After all else that can fail: this file makes the folder a run's.
        folder.write_config(config)?;
        Ok(Self { folder, log, events, keeper: Arc::new(keeper), began, is_new })
    }

    /// Says how the run can be watched.
    pub fn say_watched(&self, console: Console) {
        let folder = EventLog::folder(self.folder.path());
        console.print(&format!("watch     tensorboard --logdir {}", folder.display()));
    }

    /// Says how a run that was told to stop goes on.
    ///
    /// # Errors
    /// If the log could not write a row.
    pub fn say_stopped(&self, signal: u8, console: Console) -> Result<()> {
        let (name, step) = (stop::name(signal.into()), self.log.progress()?.step);
        self.events.flush()?;
        let path = self.folder.path().display();
        self.report(console);
        console.print(&format!("stopped by {name} after step {step}; go on with --resume {path}"));
        Ok(())
    }

    /// Writes model and summary, and says how the run went.
    ///
    /// # Errors
    /// If they, or a row of the log, cannot be written.
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

    /// Draws the run. A run is none the worse if that fails.
    fn report(&self, console: Console) {
        match report::write(self.folder.path()) {
            Ok(page) => console.print(&format!("report        {}", page.display())),
            Err(error) => console.warn(&format!("no report: {error:#}")),
        }
    }

    /// The result, from what the log has seen.
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
    /// Removes the files of a new run that failed before its first step, so that it can be started again.
    fn drop(&mut self) {
        if self.is_new && self.log.progress().is_ok_and(|progress| progress.step == 0) {
            self.events.remove();
            self.folder.remove();
        }
    }
}
