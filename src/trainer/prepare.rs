//! Preparation of the model and the devices of a run.

use crate::{
    config::{Config, TrainerArgs},
    context::Context,
    run::weights::{self, Loaded},
};
use anyhow::{Context as _, Result, bail};
use burn::train::LearnerModel;
use collective::{data_parallel::DataParallelConfig, sync_batch_norm::convert_sync_batch_norm};

/// Applies `--sync-bn` and `--init-from` to a model.
pub(super) fn prepared<M: LearnerModel>(
    model: M,
    config: &Config,
    context: &Context,
    no_strict: bool,
) -> Result<M> {
    let model = match config.sync_bn {
        // A separate group, so that its collectives do not queue behind gradient reductions.
        true => convert_sync_batch_norm(model, &context.group().duplicate("SyncBatchNorm")?)?,
        false => model,
    };
    let Some(path) = config.init_from.as_ref().filter(|_| context.is_main()) else { return Ok(model) };
    let Loaded { model, loaded, mismatches } = weights::load(model, path).context("--init-from")?;
    if !no_strict && !mismatches.is_empty() {
        bail!(
            "--init-from {} does not fit the network: {}; --no-strict loads matching tensors",
            path.display(),
            mismatches.join("; ")
        );
    }
    if loaded == 0 {
        bail!("--init-from {}: no tensor matches the network", path.display());
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
    let config = replicas.config(&args.context, context.threads(), args.sync_bn, context.console())?;
    config.devices.iter().try_for_each(|(device, _)| args.gradients.precision.check(device))?;
    Ok(Some(config))
}
