//! `--resume`: which checkpoint a run goes on from.

use super::{Identity, Manifest, Refusal, Store};
use crate::{
    config::{CheckpointArgs, Config, TrainerArgs},
    process::console::Console,
};
use anyhow::{Result, anyhow, bail};
use collective::strategy::Snapshot;
use std::path::{Path, PathBuf};

/// What `--resume` found.
pub struct Found {
    /// The run's folder.
    pub run: PathBuf,
    /// The checkpoint to go on from, if there is one yet.
    pub checkpoint: Option<Checkpoint>,
    /// What was passed over, and why.
    pub warnings: Vec<String>,
}

/// A checkpoint that is whole.
pub struct Checkpoint {
    pub path: PathBuf,
    pub manifest: Manifest,
    pub snapshot: Snapshot,
}

impl Checkpoint {
    /// What the user should know about going on from here.
    pub fn line(&self) -> String {
        let position = &self.manifest.position;
        let (step, epoch, samples) = (position.step, position.epoch, position.samples);
        let path = self.path.display();
        format!("resume    {path}: after step {step}, {samples} samples into epoch {epoch}")
    }

    /// What will not be as it would have been without the break.
    pub fn changes(&self, config: &Config) -> Vec<String> {
        let mut changes = Vec::new();
        let [then, now] =
            [self.manifest.world_size * self.manifest.batch_size, config.world_size * config.batch_size];
        if then != now {
            changes.push(format!(
                "the batches of all ranks had {then} samples before, and have {now} now: the order of the samples \
                 stays, the steps do not"
            ));
        }
        if config.gradients.grad_compression.has_memory() {
            let hook = config.gradients.grad_compression;
            changes.push(format!("what --grad-compression {hook} had kept back for later steps is lost"));
        }
        changes
    }

    /// Its tensors, which need not stay here.
    pub fn take_snapshot(&mut self) -> Snapshot {
        let empty = Snapshot { position: self.manifest.position.clone(), ..Snapshot::default() };
        std::mem::replace(&mut self.snapshot, empty)
    }
}

impl Found {
    /// Whether the run had been patient enough already.
    pub fn stopped_early(&self, patience: Option<usize>) -> bool {
        let best = self.checkpoint.as_ref().and_then(|checkpoint| checkpoint.manifest.progress.best);
        patience.zip(best).is_some_and(|(patience, best)| best.ago >= patience)
    }

    /// Follows `--resume`, and says what comes of it.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    pub fn look_and_say(
        args: &TrainerArgs,
        config: &Config,
        identity: &Identity,
        console: Console,
    ) -> Result<Option<Self>> {
        let found = Self::look(&args.checkpoints, args.run_dir.as_deref(), identity)?;
        let Some(Found { run, checkpoint, warnings }) = &found else { return Ok(None) };
        warnings.iter().for_each(|warning| console.warn(warning));
        match checkpoint {
            Some(checkpoint) => {
                console.print(&checkpoint.line());
                checkpoint.changes(config).iter().for_each(|change| console.warn(change));
            }
            None => {
                let run = run.display();
                console.print(&format!("resume    {run} has no checkpoint yet: from the beginning"));
            }
        }
        Ok(found)
    }

    /// Follows `--resume`; `None` without it. In a run's folder, damaged checkpoints are passed over
    /// for the newest good one; a checkpoint that is named must be good itself.
    ///
    /// # Errors
    /// If there is nothing to go on from at the place that is named, or what is there is refused.
    pub fn look(args: &CheckpointArgs, run_dir: Option<&Path>, identity: &Identity) -> Result<Option<Self>> {
        let Some(path) = &args.resume else { return Ok(None) };
        let found = match (path, run_dir) {
            // Checked when the program began.
            (None, None) => return Ok(None),
            (None, Some(run)) => Self::newest(run)?,
            (Some(path), _) if is_checkpoint(path) => Self::exactly(path)?,
            (Some(path), _) if !is_run(path) => {
                bail!("--resume {}: neither a run's folder nor a checkpoint", path.display())
            }
            (Some(path), _) => match Self::newest(path)? {
                Found { checkpoint: None, .. } => {
                    bail!("--resume {}: this run has no checkpoint", path.display())
                }
                found => found,
            },
        };
        let elsewhere = run_dir.is_some_and(|dir| dir.canonicalize().ok() != found.run.canonicalize().ok());
        if path.is_some() && elsewhere {
            bail!("--resume goes on in the same run folder, {}; leave out --run-dir", found.run.display());
        }
        if let Some(Checkpoint { path, manifest, .. }) = &found.checkpoint {
            let differences = manifest.identity.differences(identity);
            if !differences.is_empty() {
                bail!(
                    "{} was made with {}; give the same flags, or begin a new run with --init-from {}",
                    path.display(),
                    differences.join("; "),
                    path.join("model.bpk").display()
                );
            }
        }
        Ok(Some(found))
    }

    /// The newest checkpoint of a run that is whole.
    fn newest(run: &Path) -> Result<Self> {
        let (mut warnings, mut refusals) = (Vec::new(), Vec::new());
        for (_, path) in Store::of(run).list()? {
            match open(&path) {
                Ok(checkpoint) => {
                    let instead = |refusal| format!("{refusal}; going on from {}", checkpoint.path.display());
                    warnings.extend(refusals.into_iter().map(instead));
                    return Ok(Self { run: run.into(), checkpoint: Some(checkpoint), warnings });
                }
                // An older one may be readable, but a newer program's work would be lost.
                Err(refusal @ Refusal::Newer { .. }) => return Err(refusal.into()),
                Err(refusal) => refusals.push(refusal),
            }
        }
        match refusals.into_iter().next() {
            Some(refusal) => Err(anyhow!("{refusal}; the run has no other checkpoint that is whole")),
            None => Ok(Self { run: run.into(), checkpoint: None, warnings }),
        }
    }

    /// The checkpoint in `path`, and no other.
    fn exactly(path: &Path) -> Result<Self> {
        // `last` and `best` are links.
        let path = path.canonicalize().unwrap_or_else(|_| path.into());
        let Some(run) = path.parent().and_then(Path::parent) else {
            bail!("--resume {}: a checkpoint must be in a run's folder", path.display());
        };
        match open(&path) {
            Ok(checkpoint) => {
                Ok(Self { run: run.into(), checkpoint: Some(checkpoint), warnings: Vec::new() })
            }
            Err(refusal) => {
                let others = Store::of(run).list().unwrap_or_default();
                let good = others.into_iter().find(|(_, other)| *other != path && open(other).is_ok());
                let offer = good.map_or_else(
                    || "; the run has no other checkpoint that is whole".to_owned(),
                    |(_, good)| format!("; {} is whole: --resume that", good.display()),
                );
                bail!("--resume: {refusal}{offer}")
            }
        }
    }
}

fn open(path: &Path) -> Result<Checkpoint, Refusal> {
    let manifest = Manifest::read(path)?;
    let snapshot = manifest.load(path)?;
    Ok(Checkpoint { path: path.into(), manifest, snapshot })
}

/// By place or by content; a damaged one may have lost its manifest.
fn is_checkpoint(path: &Path) -> bool {
    let among = |path: &Path| path.parent().is_some_and(|parent| parent.ends_with("checkpoints"));
    path.is_dir()
        && (path.join(super::manifest::NAME).exists() || path.canonicalize().is_ok_and(|p| among(&p)))
}

fn is_run(path: &Path) -> bool {
    path.join("config.json").exists() || path.join("checkpoints").is_dir()
}
