//! What rank 0 does when the training loop offers it a checkpoint, or the end of an epoch.

use super::{
    super::{log::RunLog, tensorboard::EventLog},
    Identity, Manifest, Store,
    store::Keep,
};
use crate::config::{CheckpointArgs, Config};
use collective::strategy::{CheckpointSink, EpochReport, Snapshot};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Instant};

/// Keeps checkpoints in a run's folder.
pub struct FolderKeeper {
    store: Store,
    log: Arc<RunLog>,
    events: Arc<EventLog>,
    args: CheckpointArgs,
    identity: Identity,
    world_size: usize,
    batch_size: usize,
    began: Instant,
}

impl FolderKeeper {
    /// For the run in `run`, whose process began at `began`.
    pub fn new(
        run: &Path,
        log: Arc<RunLog>,
        events: Arc<EventLog>,
        config: &Config,
        identity: Identity,
        began: Instant,
    ) -> Self {
        let Config { world_size, batch_size, checkpoints: args, .. } = config.clone();
        Self { store: Store::of(run), log, events, args, identity, world_size, batch_size, began }
    }

    fn write(&self, snapshot: &Snapshot) -> anyhow::Result<()> {
        // The rows up to here must be on disk before a run can go on behind them.
        let mut progress = self.log.sync()?;
        self.events.flush()?;
        progress.seconds += self.began.elapsed().as_secs_f64();
        let keep = Keep { newest: self.args.keep_last, best: progress.best.as_ref().map(|best| best.step) };
        let manifest = Manifest {
            version: env!("CARGO_PKG_VERSION").into(),
            position: snapshot.position.clone(),
            world_size: self.world_size,
            batch_size: self.batch_size,
            identity: self.identity.clone(),
            progress,
            files: BTreeMap::new(),
        };
        self.store.write(manifest, snapshot, keep)
    }
}

impl CheckpointSink for FolderKeeper {
    fn keep(&self, snapshot: &Snapshot) -> Result<(), String> {
        self.write(snapshot).map_err(|error| format!("{error:#}"))
    }

    fn is_over(&self, _report: &EpochReport) -> bool {
        // The log has seen the report already. If it could not write it, keeping says so.
        self.args.early_stop.is_some_and(|patience| self.log.epochs_since_best() >= patience)
    }
}
