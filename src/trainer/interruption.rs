//! Live recovery of a training: its state when the group fails, and its continuation in a new group.

use super::{prepare::Resumed, trained::History};
use crate::{
    config::{Config, TrainerArgs},
    context::{
        Context,
        recovery::{Recovery, Survivor},
    },
    run::{Output, checkpoint::ResumePoint},
};
use anyhow::Result;
use collective::{
    ProcessGroup,
    strategy::{LiveRecovery, LiveState, Position, Report, Snapshot},
};
use std::{path::PathBuf, sync::Arc, time::Instant};

/// A training that can be interrupted, under a launcher that replaces ranks.
pub(super) struct Interruption<'a> {
    recovery: &'a Recovery,
    /// Number of the training in the program.
    number: usize,
    pub state: Arc<LiveRecovery>,
    /// Folder of the run.
    run: PathBuf,
}

impl<'a> Interruption<'a> {
    /// The continuation of a training that was interrupted in an earlier generation of the group, if it was, and the next
    /// interruption, if the training can be continued after it.
    ///
    /// # Errors
    /// If the group fails, or the run has checkpoints, but none is intact.
    pub fn survive(
        context: &'a Context,
        args: &TrainerArgs,
        config: &mut Config,
    ) -> Result<(Option<Resumed>, Option<Self>)> {
        let number = context.next_training();
        let Some(recovery) = context.recovery().filter(|recovery| is_recoverable(context, recovery, args))
        else {
            return Ok((None, None));
        };
        let mut resumed = None;
        if recovery.generation().number > 0 {
            resumed = resume(context, config, recovery.survivor(number))?;
            if resumed.is_none() && config.args.run_dir.is_some() {
                // The folder is that of an earlier generation, of which no rank is left.
                config.args.checkpoints.resume.get_or_insert(None);
            }
        }
        Ok((resumed, Some(Self { recovery, number, state: Arc::default(), run: PathBuf::new() })))
    }

    /// Begins the training, and sends the reports that files and observers of a continued one do not have yet.
    pub fn begin(
        self,
        resumed: &Resumed,
        output: Option<&Output>,
        history: &History,
        group: &ProcessGroup,
    ) -> Result<Self> {
        let folder = output.map(|output| output.folder.path().canonicalize()).transpose()?;
        let run = group.broadcast_object(&folder, 0)?.unwrap_or_default();
        let reports = resumed.reports.clone().unwrap_or_default();
        let stored = resumed.found.as_ref().and_then(|found| found.manifest.as_ref());
        let position = stored.map_or_else(Position::start, |stored| stored.position.clone());
        for report in &reports {
            let is_missing = match report {
                Report::Step(report) => report.step > position.step,
                Report::Epoch(report) => {
                    report.epoch > position.epoch || (report.epoch == position.epoch && !position.evaluated)
                }
            };
            let files = output.filter(|_| is_missing).into_iter().flat_map(|output| output.observers());
            files.for_each(|observer| report.send_to(&*observer));
            report.send_to(history);
        }
        Ok(Self { state: Arc::new(LiveRecovery::new(reports)), run, ..self })
    }

    /// Keeps the state of the training after it has failed, if it failed with its group.
    pub fn keep(self) {
        if let Some(state) = self.state.take() {
            let survivor = Survivor { state, run: self.run, failed: Instant::now() };
            self.recovery.keep(self.number, survivor);
        }
    }
}

/// Continues with the state of the rank that has progressed most; `None` if no rank has one.
///
/// A checkpoint that is newer replaces the state of the ranks: rank 0 may have failed after it wrote it.
fn resume(context: &Context, config: &mut Config, survivor: Option<Survivor>) -> Result<Option<Resumed>> {
    let (group, console) = (context.group(), context.console());
    let (state, run) = survivor.map(|it| (it.state, (it.run, it.failed.elapsed()))).unzip();
    let mut runs = group.all_gather_object(&run)?.into_iter().flatten();
    let (Some(LiveState { snapshot, reports }), Some((run, mut interruption))) =
        (LiveState::share(state, group)?, runs.next())
    else {
        return Ok(None);
    };
    interruption = runs.fold(interruption, |longest, (_, other)| longest.max(other));
    let mut found = group.on_rank_zero(|| ResumePoint::newest(&run, console)).transpose()?;
    let live = LiveState::progress(&snapshot.position);
    let stored = found.as_ref().and_then(|found| found.manifest.as_ref());
    let is_newer = stored.is_some_and(|stored| LiveState::progress(&stored.position) > live);
    let stored = found.as_mut().and_then(|found| found.snapshot.take());
    let snapshot = match group.broadcast_object(&is_newer, 0)? {
        true => Snapshot::share(stored, group)?,
        false => Some(snapshot),
    };
    if let Some(Snapshot { position: Position { step, epoch, .. }, .. }) = &snapshot {
        let seconds = interruption.as_secs_f64();
        let ranks = group.world_size();
        console.print(&format!(
            "recovered after step {step} of epoch {epoch} with {ranks} rank(s), interrupted for {seconds:.2} s"
        ));
    }
    let resumed = Resumed::new(config, found, snapshot, group)?;
    Ok(Some(Resumed { reports: Some(reports), ..resumed }))
}

/// Whether a training can continue in a new group after a failure. Otherwise all ranks restart, and a warning says why.
fn is_recoverable(context: &Context, recovery: &Recovery, args: &TrainerArgs) -> bool {
    let gradients = &args.gradients;
    let flag = match (gradients.shard_optimizer, gradients.sync_every) {
        (true, _) => "--shard-optimizer",
        (_, Some(_)) => "--sync-every",
        (false, None) => return true,
    };
    let reason = format!("no rank has the state of all with {flag}");
    context.console().warn(&format!("--recover live: {reason}; after a failure, all ranks restart"));
    recovery.refuse(reason);
    false
}
