//! Checkpoint folder of a run: atomic writes, and removal of old checkpoints.

use super::manifest::{self, Manifest};
use crate::process::atomic_file::{self, remove};
use anyhow::{Context, Result};
use collective::strategy::Snapshot;
use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Extension of a checkpoint while one of the same step replaces it.
const PREVIOUS: &str = "previous";
/// Extension of checkpoints after the step that a run was resumed from.
const ASIDE: &str = "aside";

/// The folder `RUN_DIR/checkpoints`.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    folder: PathBuf,
}

impl CheckpointStore {
    /// Returns the store of a run folder, which need not exist yet.
    pub fn in_run(run: &Path) -> Self {
        Self { folder: run.join("checkpoints") }
    }

    /// Lists step and folder of every checkpoint, newest first, without verifying them.
    ///
    /// # Errors
    /// If the folder exists and cannot be read.
    pub fn list(&self) -> Result<Vec<(usize, PathBuf)>> {
        let failed = || format!("cannot read {}", self.folder.display());
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(failed)?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let path = entry.with_context(failed)?.path();
            found.extend(step_of(&path).map(|step| (step, path)));
        }
        // A replaced checkpoint has a longer name and sorts behind its replacement.
        found.sort_unstable_by_key(|(step, path)| (std::cmp::Reverse(*step), path.clone()));
        Ok(found)
    }

    /// Reads the best checkpoint, if there is one.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn best(&self) -> Result<Option<Snapshot>> {
        let path = self.folder.join("best");
        if !path.exists() {
            return Ok(None);
        }
        Ok(Some(Manifest::read(&path)?.load(&path)?))
    }

    /// Writes a checkpoint, updates the links `last` and `best`, and removes old checkpoints.
    ///
    /// Old checkpoints are unchanged until the new one is complete and synced.
    ///
    /// # Errors
    /// If a file operation fails. An incomplete checkpoint is removed.
    pub fn write(&self, manifest: &Manifest, snapshot: &Snapshot, keep_last: usize) -> Result<()> {
        let best = manifest.progress.best.as_ref().map(|best| best.step);
        let step = snapshot.position.step;
        let path = self.folder.join(name(step));
        let temporary = self.folder.join(format!(".{}.tmp", name(step)));
        let written = fs::create_dir_all(&self.folder).map_err(Into::into).and_then(|()| {
            self.fill(&temporary, manifest, snapshot)?;
            self.publish(&temporary, &path)
        });
        if written.is_err() {
            let _ = fs::remove_dir_all(&temporary);
        }
        written.with_context(|| {
            format!("cannot write the checkpoint {}{}", path.display(), self.newest_hint())
        })?;
        self.prune(step, best, keep_last)
            .with_context(|| format!("cannot remove old checkpoints in {}", self.folder.display()))
    }

    /// Writes all files of a checkpoint to a temporary folder.
    fn fill(&self, temporary: &Path, manifest: &Manifest, snapshot: &Snapshot) -> Result<()> {
        remove(temporary)?;
        fs::create_dir(temporary)?;
        for (name, bytes) in manifest::files(snapshot) {
            atomic_file::write_new(&temporary.join(&name), bytes).context(name)?;
        }
        atomic_file::write_new(&temporary.join(manifest::NAME), &manifest.to_bytes()?)
            .context(manifest::NAME)?;
        Ok(atomic_file::sync_folder(temporary)?)
    }

    /// Renames a complete checkpoint to its final name.
    ///
    /// A checkpoint of the same step, written before its evaluation, remains valid until then.
    fn publish(&self, temporary: &Path, path: &Path) -> Result<()> {
        if path.exists() {
            let previous = path.with_extension(PREVIOUS);
            remove(&previous)?;
            fs::rename(path, &previous)?;
        }
        fs::rename(temporary, path)?;
        Ok(atomic_file::sync_folder(&self.folder)?)
    }

    /// Updates the links and removes all but `keep_last` checkpoints and the best one.
    fn prune(&self, step: usize, best: Option<usize>, keep_last: usize) -> Result<()> {
        self.link("last", step)?;
        if best == Some(step) {
            self.link("best", step)?;
        }
        self.remove_leftovers()?;
        for (_, path) in self.list()?.iter().skip(keep_last).filter(|(step, _)| best != Some(*step)) {
            remove(path)?;
        }
        Ok(atomic_file::sync_folder(&self.folder)?)
    }

    /// Removes incomplete checkpoints of killed runs and those set aside by a resumed run.
    fn remove_leftovers(&self) -> Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "tmp" || e == ASIDE || e == PREVIOUS) {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Atomically points the link `to` at the checkpoint of `step`.
    fn link(&self, to: &str, step: usize) -> io::Result<()> {
        let temporary = self.folder.join(format!(".{to}.tmp"));
        remove(&temporary)?;
        symlink(name(step), &temporary)?;
        fs::rename(temporary, self.folder.join(to))
    }

    /// Sets aside the checkpoints after `step`, which a run resumed from `step` will write again.
    ///
    /// They are removed when the run writes its next checkpoint.
    ///
    /// # Errors
    /// If a checkpoint cannot be renamed.
    pub fn set_aside_after(&self, step: usize) -> Result<()> {
        for (_, path) in self.list()?.iter().take_while(|(later, _)| *later > step) {
            let aside = path.with_extension(ASIDE);
            remove(&aside)
                .and_then(|()| fs::rename(path, &aside))
                .with_context(|| format!("cannot rename {}", path.display()))?;
        }
        Ok(())
    }

    /// Names the newest remaining checkpoint, for error messages.
    fn newest_hint(&self) -> String {
        let newest = self.list().ok().and_then(|list| list.first().map(|(_, path)| path.clone()));
        newest.map_or_else(String::new, |path| format!(" ({} is intact)", path.display()))
    }
}

fn name(step: usize) -> String {
    format!("step-{step:06}")
}

/// Parses the step from the name of a checkpoint folder.
fn step_of(path: &Path) -> Option<usize> {
    let name = path.file_name()?.to_str()?.strip_prefix("step-")?;
    name.strip_suffix(&format!(".{PREVIOUS}")).unwrap_or(name).parse().ok()
}
