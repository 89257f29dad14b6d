//! Checkpoint sink of a run folder, used on rank 0.

use super::{
    super::{log::RunLog, tensorboard::EventLog},
    CheckpointStore, Identity, Manifest,
    store::Retention,
};
use crate::{config::Config, process::console::Console};
use collective::strategy::{CheckpointSink, EpochReport, Snapshot};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Instant};

/// Checkpoint sink that writes to a run folder and decides when to stop early.
pub struct CheckpointWriter {
    store: CheckpointStore,
    log: Arc<RunLog>,
    events: Arc<EventLog>,
    config: Config,
    identity: Identity,
    began: Instant,
    console: Console,
}

impl CheckpointWriter {
    /// Creates a writer for the run folder `run`; `began` is the start time of the process.
    pub fn new(
        run: &Path,
        log: Arc<RunLog>,
        events: Arc<EventLog>,
        config: &Config,
        identity: Identity,
        began: Instant,
        console: Console,
    ) -> Self {
        let (store, config) = (CheckpointStore::in_run(run), config.clone());
        Self { store, log, events, config, identity, began, console }
    }

    fn write(&self, snapshot: &Snapshot) -> anyhow::Result<()> {
        // A run resumed from this checkpoint keeps these rows, so they must be on disk first.
        let mut progress = self.log.sync()?;
        self.events.flush()?;
        progress.seconds += self.began.elapsed().as_secs_f64();
        let keep = Retention {
            newest: self.config.args.checkpoints.keep_last,
            best: progress.best.as_ref().map(|best| best.step),
        };
        let manifest = Manifest {
            version: env!("CARGO_PKG_VERSION").into(),
            position: snapshot.position.clone(),
            world_size: self.config.world_size,
            batch_size: self.config.args.batch_size,
            identity: self.identity.clone(),
            progress,
            files: BTreeMap::new(),
        };
        self.store.write(manifest, snapshot, keep)
    }
}

impl CheckpointSink for CheckpointWriter {
    fn save(&self, snapshot: &Snapshot) -> Result<(), String> {
        self.write(snapshot).map_err(|error| format!("{error:#}"))
    }

    fn should_stop(&self, report: &EpochReport) -> bool {
        // The log observes the report first. `save` reports its write errors.
        let reason =
            self.config.args.checkpoints.early_stop.and_then(|patience| self.log.early_stop(patience));
        if let Some(reason) = reason.as_ref().filter(|_| report.epoch < self.config.args.epochs.begun()) {
            self.console.print(&format!("stopped early: {reason}"));
        }
        reason.is_some()
    }
}
