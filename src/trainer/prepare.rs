//! Preparation of a run: model, devices, starting point, and the folder of a short run.

use crate::{
    config::{Config, TrainerArgs},
    context::Context,
    process::{auto_batch, console::Console},
    run::{
        checkpoint::ResumePoint,
        weights::{self, Loaded},
    },
};
use anyhow::{Context as _, Result, bail};
use burn::module::{Module, ParamGroup};
use burn::train::LearnerModel;
use collective::{
    ProcessGroup, Secret,
    dp::DataParallelConfig,
    loader::DistributedLoader,
    module_state::float_params,
    strategy::{Position, Report, Snapshot},
    sync_batch_norm::convert_sync_batch_norm,
};
use std::{env, fs, path::PathBuf};

/// Number of tensors that an error lists.
const LISTED: usize = 10;

/// Applies `--sync-bn` and `--init-from` to a model, whose layer `head` may have another shape in the file.
pub(super) fn prepared<M: LearnerModel>(
    model: M,
    config: &Config,
    context: &Context,
    head: Option<&str>,
) -> Result<M> {
    let model = match config.args.sync_bn {
        // A separate group, so that its collectives do not queue behind gradient reductions.
        true => convert_sync_batch_norm(model, &context.group().duplicate("SyncBatchNorm")?)?,
        false => model,
    };
    let Some(path) = config.args.init_from.as_ref().filter(|_| context.is_main()) else { return Ok(model) };
    let Loaded { model, loaded, mut mismatches } = weights::load(model, path).context("--init-from")?;
    let is_new = |what: &String, head: &str| {
        what.starts_with(&format!("`{head}.")) && what.contains("` has the shape ")
    };
    let all = mismatches.len();
    mismatches.retain(|what| !head.is_some_and(|head| is_new(what, head)));
    let replaced = head.filter(|_| mismatches.len() < all);
    if !config.args.no_strict && !mismatches.is_empty() {
        let (listed, more) = mismatches.split_at(LISTED.min(mismatches.len()));
        let more = if more.is_empty() { String::new() } else { format!("; and {} more", more.len()) };
        bail!(
            "--init-from {} does not fit the network: {}{more}; --no-strict loads matching tensors",
            path.display(),
            listed.join("; ")
        );
    }
    if loaded == 0 {
        bail!("--init-from {}: no tensor matches the network", path.display());
    }
    if let Some(head) = replaced {
        context
            .console()
            .print(&format!("weights   the layer `{head}` is new: it has another shape in the file"));
    }
    mismatches.iter().for_each(|what| context.console().warn(&format!("--init-from: {what}")));
    Ok(model)
}

/// Returns the device configuration of `--mode dp`; `None` in other modes.
pub(super) fn devices(
    context: &Context,
    args: &TrainerArgs,
    supported: bool,
) -> Result<Option<DataParallelConfig>> {
    let Some(replicas) = &context.role().replicas else { return Ok(None) };
    if !supported {
        bail!("--mode dp: this program does not split its training step over devices; use --mode ddp");
    }
    if args.gradients.shard_optimizer {
        bail!("--shard-optimizer: --mode dp has one optimizer; use --mode ddp");
    }
    if args.gradients.sync_every.is_some() {
        bail!("--sync-every: --mode dp has one copy of the parameters; use --mode ddp");
    }
    let config = replicas.config(&args.context, context.threads(), args.sync_bn, context.console())?;
    config.devices.iter().try_for_each(|(device, _)| args.gradients.precision.check(device))?;
    Ok(Some(config))
}

/// Resume state on every rank.
pub(super) struct Resumed {
    /// Resume point on rank 0, `None` on other ranks.
    pub found: Option<ResumePoint>,
    pub snapshot: Option<Snapshot>,
    /// Epochs of the whole run; 0 if early stopping has ended it.
    pub epochs: usize,
    /// Reports of a run that continues in a new generation of the group, since its start or its last resume.
    pub reports: Option<Vec<Report>>,
}

impl Resumed {
    /// Reads the checkpoint on rank 0 and broadcasts it.
    ///
    /// # Errors
    /// If the checkpoint is damaged or was written with other settings.
    pub fn find(config: &mut Config, group: &ProcessGroup, console: Console) -> Result<Self> {
        if auto_batch::divisor().is_ok_and(|divisor| divisor > 1) && config.args.run_dir.is_some() {
            // The run that starts again with a smaller batch has used the folder.
            config.args.checkpoints.resume.get_or_insert(None);
        }
        let mut found = group.on_rank_zero(|| ResumePoint::find(config, console)).transpose()?.flatten();
        let stored = found.as_mut().and_then(|found| found.snapshot.take());
        let snapshot = Snapshot::share(stored, group)?;
        Self::new(config, found, snapshot, group)
    }

    /// Continues at `snapshot`, which is the same on every rank.
    pub fn new(
        config: &mut Config,
        found: Option<ResumePoint>,
        snapshot: Option<Snapshot>,
        group: &ProcessGroup,
    ) -> Result<Self> {
        let mut epochs = config.args.epochs.begun();
        if snapshot.is_some() {
            // The checkpoint contains the weights.
            config.args.init_from = None;
            let over =
                found.as_ref().is_some_and(|found| found.stopped_early(config.args.checkpoints.early_stop));
            epochs = if group.broadcast_object(&over, 0)? { 0 } else { epochs };
        }
        Ok(Self { found, snapshot, epochs, reports: None })
    }

    /// Returns the last optimizer step if training ends within an epoch.
    pub fn last_step<O>(&self, config: &Config, train: &dyn DistributedLoader<O>) -> Option<usize> {
        let position = self.snapshot.as_ref().map_or_else(Position::start, |kept| kept.position.clone());
        config.last_step(train.steps(), train.steps_left(position.done()), &position)
    }
}

/// Verifies that each group of [`Trainer::lr_group`](super::Trainer::lr_group) has a parameter of `model`.
pub(super) fn check_groups<M: Module>(model: &M, groups: &[(ParamGroup, f64)]) -> Result<()> {
    let found = float_params(model);
    for (group, factor) in groups {
        if !found.iter().any(|param| group.matches(&param.id, Some(&param.path))) {
            let names: Vec<&str> = found.iter().map(|param| param.path.as_str()).collect();
            bail!(
                "no parameter is in the group with {factor} times the learning rate; the model has {}",
                names.join(", ")
            );
        }
    }
    Ok(())
}

/// Run folder of `--fast-dev-run`, which is removed when this is dropped.
pub(super) struct ScratchFolder(PathBuf);

impl ScratchFolder {
    /// Returns the folder and the flags of a run of `batches` batches, if `args` request it.
    ///
    /// At its end, the run loads the checkpoint that it has written.
    pub fn for_run(args: &TrainerArgs) -> Option<(Self, TrainerArgs)> {
        let batches = args.fast_dev_run?;
        // An unpredictable name: another user could have created a predictable one before.
        let folder = env::temp_dir().join(format!("burn-ddp-fast-dev-run-{}", Secret::random().expose()));
        let mut args = args.clone();
        args.max_steps = Some(args.max_steps.map_or(batches, |most| most.min(batches)));
        args.run_dir = Some(folder.clone());
        args.checkpoints.load_best = true;
        (args.export, args.mlflow) = (None, None);
        Some((Self(folder), args))
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
