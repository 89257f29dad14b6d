//! Starting point of a run: the beginning or a checkpoint.

use crate::{
    config::{Config, TrainerArgs},
    process::console::Console,
    run::{
        Output,
        checkpoint::{Identity, ResumePoint},
    },
};
use anyhow::Result;
use collective::{
    ProcessGroup,
    loader::DistributedLoader,
    strategy::{Position, Snapshot},
};
use serde_json::{Map, Value};
use std::time::Instant;

/// Resume state on every rank.
pub(super) struct Resumed {
    /// Resume point on rank 0, `None` on other ranks.
    found: Option<ResumePoint>,
    identity: Identity,
    pub snapshot: Option<Snapshot>,
    /// Epochs of the whole run; 0 if early stopping has ended it.
    pub epochs: usize,
}

impl Resumed {
    /// Reads the checkpoint on rank 0 and broadcasts it. `own` are the program's settings.
    ///
    /// # Errors
    /// If the checkpoint is damaged or was written with other settings.
    pub fn find(
        args: &TrainerArgs,
        config: &mut Config,
        own: Map<String, Value>,
        group: &ProcessGroup,
        console: Console,
    ) -> Result<Self> {
        let identity = Identity::new(config, own);
        let find = || ResumePoint::find_and_report(args, config, &identity, console);
        let mut found = group.on_rank_zero(find).transpose()?.flatten();
        let kept = found.as_mut().and_then(|found| found.checkpoint.as_mut()).map(|c| c.take_snapshot());
        let snapshot = Snapshot::share(kept, group)?;
        let mut epochs = args.epochs.begun();
        if snapshot.is_some() {
            // The checkpoint contains the weights.
            config.init_from = None;
            let over = found.as_ref().is_some_and(|found| found.stopped_early(args.checkpoints.early_stop));
            epochs = if group.broadcast_object(&over, 0)? { 0 } else { epochs };
        }
        Ok(Self { found, identity, snapshot, epochs })
    }

    /// Returns the last optimizer step if training ends within an epoch.
    pub fn last_step<O>(&self, config: &Config, train: &dyn DistributedLoader<O>) -> Option<usize> {
        let position = self.snapshot.as_ref().map_or_else(Position::start, |kept| kept.position.clone());
        config.last_step(train.steps(), train.steps_left(position.done()), &position)
    }

    /// Opens the folder of a new or resumed run.
    ///
    /// `began` is the start time of this process.
    ///
    /// # Errors
    /// If the folder already contains another run or cannot be written to.
    pub fn open(
        &self,
        args: &TrainerArgs,
        config: &Config,
        began: Instant,
        console: Console,
    ) -> Result<Output> {
        Output::open(args, config, self.found.as_ref(), self.identity.clone(), began, console)
    }
}
