//! `--resume`: selection of the checkpoint to resume from.

use super::{super::folder::lock, CheckpointError, CheckpointStore, Manifest};
use crate::{config::Config, process::console::Console};
use anyhow::{Result, anyhow, bail};
use collective::strategy::{Position, Snapshot};
use serde_json::{Map, Value};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Run and verified checkpoint selected by `--resume`.
#[derive(Default)]
pub struct ResumePoint {
    /// Run folder.
    pub run: PathBuf,
    /// Folder of the checkpoint.
    path: PathBuf,
    /// Manifest of the checkpoint; `None` if the run has no checkpoint yet.
    pub manifest: Option<Manifest>,
    /// The checkpoint's tensors, until they are taken.
    pub snapshot: Option<Snapshot>,
}

/// Name of the accumulation among the settings that a resumed run must share.
const ACCUMULATION: &str = "--grad-accum-steps";

/// Samples of all ranks in an optimizer step, when the checkpoint was written and now.
fn global_batches(checkpoint: &Manifest, config: &Config) -> [usize; 2] {
    let steps = checkpoint.identity.get(ACCUMULATION).and_then(Value::as_u64).unwrap_or(1) as usize;
    [
        checkpoint.world_size * checkpoint.batch_size * steps,
        config.world_size * config.args.batch_size * config.args.gradients.grad_accum_steps,
    ]
}

/// Describes settings that a resumed run must share, and does not.
fn contradictions(checkpoint: &Manifest, config: &Config) -> Result<Vec<String>> {
    let mut now = config.identity()?;
    let [before, after] = global_batches(checkpoint, config);
    // With local SGD, the steps are those of single ranks.
    let is_local = config.args.gradients.sync_every.is_some();
    if before == after && (!is_local || checkpoint.world_size == config.world_size) {
        // The same steps in other batches.
        now.extend(
            checkpoint.identity.get_key_value(ACCUMULATION).map(|(flag, n)| (flag.clone(), n.clone())),
        );
    }
    Ok(differences(&checkpoint.identity, &now))
}

/// Describes differences from an uninterrupted run, for warnings.
fn changes(checkpoint: &Manifest, config: &Config) -> Vec<String> {
    let (mut changes, gradients) = (Vec::new(), &config.args.gradients);
    let [then, now] = [checkpoint.world_size, config.world_size];
    let (samples, samples_now) = (then * checkpoint.batch_size, now * config.args.batch_size);
    let [before, after] = global_batches(checkpoint, config);
    if before != after {
        changes.push(format!(
            "the batches of all ranks had {samples} samples before, and have {samples_now} now: the order of the \
             samples stays, the steps do not"
        ));
    }
    if gradients.sync_every.is_some() && then != now {
        changes.push(format!(
            "--sync-every: {then} ranks had an optimizer each, and {now} have one now; rank r continues with that of \
             rank r modulo {then}"
        ));
    }
    if gradients.grad_compression.has_memory() {
        let hook = gradients.grad_compression;
        changes.push(format!("what --grad-compression {hook} had kept back for later steps is lost"));
    }
    changes
}

impl ResumePoint {
    /// Whether early stopping with `patience` has ended the run.
    pub fn stopped_early(&self, patience: Option<usize>) -> bool {
        let best = self.manifest.as_ref().and_then(|manifest| manifest.progress.best.as_ref());
        patience.zip(best).is_some_and(|(patience, best)| best.ago >= patience)
    }

    /// Selects the checkpoint that `--resume` names and prints the result; returns `None` without `--resume`.
    ///
    /// For a run folder, it is the newest intact checkpoint. For a checkpoint folder, it is that one.
    ///
    /// # Errors
    /// If the path has no intact checkpoint, or the checkpoint belongs to a run with other settings.
    pub fn find(config: &Config, console: Console) -> Result<Option<Self>> {
        let Some(path) = &config.args.checkpoints.resume else { return Ok(None) };
        let run_dir = config.args.run_dir.as_deref();
        let found = match (path, run_dir) {
            // `CheckpointArgs::check` has rejected this case.
            (None, None) => return Ok(None),
            (None, Some(run)) => Self::newest(run, console)?,
            (Some(path), _) if is_checkpoint(path) => Self::single(path)?,
            (Some(path), _) if !is_run(path) => {
                bail!("--resume {}: neither a run folder nor a checkpoint", path.display())
            }
            (Some(path), _) => match Self::newest(path, console)? {
                ResumePoint { manifest: None, .. } => {
                    bail!("--resume {}: this run has no checkpoint", path.display())
                }
                found => found,
            },
        };
        let elsewhere = run_dir.is_some_and(|dir| dir.canonicalize().ok() != found.run.canonicalize().ok());
        if path.is_some() && elsewhere {
            bail!("--resume continues in the same run folder, {}; leave out --run-dir", found.run.display());
        }
        let Some(manifest) = &found.manifest else {
            let run = found.run.display();
            console.print(&format!("resume    {run} has no checkpoint yet: starting from the beginning"));
            return Ok(Some(found));
        };
        let differences = contradictions(manifest, config)?;
        if !differences.is_empty() {
            bail!(
                "{} was made with {}; give the same flags, or begin a new run with --init-from {}",
                found.path.display(),
                differences.join("; "),
                found.path.join("model.bpk").display()
            );
        }
        let (Position { step, epoch, samples, .. }, path) = (&manifest.position, found.path.display());
        console.print(&format!("resume    {path}: after step {step}, {samples} samples into epoch {epoch}"));
        changes(manifest, config).iter().for_each(|change| console.warn(change));
        Ok(Some(found))
    }

    /// Selects the newest intact checkpoint of a run.
    ///
    /// # Errors
    /// If the run has checkpoints, but none is intact, one has another format, or another training writes to the
    /// run's folder.
    pub fn newest(run: &Path, console: Console) -> Result<Self> {
        let _lock = lock(run)?;
        let mut errors = Vec::new();
        for (_, path) in CheckpointStore::in_run(run).list()? {
            match Self::open(run, &path) {
                Ok(found) => {
                    let path = path.display();
                    errors.iter().for_each(|error| console.warn(&format!("{error}; resuming from {path}")));
                    return Ok(found);
                }
                // Resuming from an older checkpoint would discard the progress of another version.
                Err(error @ CheckpointError::OtherFormat { .. }) => return Err(error.into()),
                Err(error) => errors.push(error),
            }
        }
        match errors.into_iter().next() {
            Some(error) => Err(anyhow!("{error}; the run has no other intact checkpoint")),
            None => Ok(Self { run: run.into(), ..Self::default() }),
        }
    }

    /// Selects the checkpoint in `path`.
    fn single(path: &Path) -> Result<Self> {
        // `last` and `best` are links.
        let path = path.canonicalize().unwrap_or_else(|_| path.into());
        let Some(run) = path.parent().and_then(Path::parent) else {
            bail!("--resume {}: a checkpoint must be in a run's folder", path.display());
        };
        let _lock = lock(run)?;
        Self::open(run, &path).or_else(|error| {
            let others = CheckpointStore::in_run(run).list().unwrap_or_default();
            let good = others.into_iter().find(|(_, other)| *other != path && Self::open(run, other).is_ok());
            let offer = good.map_or_else(
                || "the run has no other intact checkpoint".to_owned(),
                |(_, good)| format!("{} is intact: --resume that", good.display()),
            );
            bail!("--resume: {error}; {offer}")
        })
    }

    fn open(run: &Path, path: &Path) -> Result<Self, CheckpointError> {
        let manifest = Manifest::read(path)?;
        let snapshot = Some(manifest.load(path)?);
        Ok(Self { run: run.into(), path: path.into(), manifest: Some(manifest), snapshot })
    }
}

/// Describes the settings that differ, such as `--seed 42, not 43`. The value of `now` is last.
fn differences(kept: &Map<String, Value>, now: &Map<String, Value>) -> Vec<String> {
    let flags: BTreeSet<&String> = kept.keys().chain(now.keys()).collect();
    let value = |of: &Map<String, Value>, flag| of.get(flag).cloned().unwrap_or_default();
    let differ = flags.into_iter().map(|flag| (flag, value(kept, flag), value(now, flag)));
    let describe = |(flag, a, b): (&String, Value, Value)| match (a, b) {
        (Value::Null, b) => format!("no {flag}, not {b}"),
        (a, Value::Null) => format!("{flag} {a}, not none"),
        (a, b) => format!("{flag} {a}, not {b}"),
    };
    differ.filter(|(_, a, b)| a != b).map(describe).collect()
}

/// Whether `path` is a checkpoint by content, or by location if its manifest is missing.
fn is_checkpoint(path: &Path) -> bool {
    let among = |path: &Path| path.parent().is_some_and(|parent| parent.ends_with("checkpoints"));
    path.is_dir()
        && (path.join(super::manifest::NAME).exists() || path.canonicalize().is_ok_and(|p| among(&p)))
}

fn is_run(path: &Path) -> bool {
    path.join("config.json").exists() || path.join("checkpoints").is_dir()
}
