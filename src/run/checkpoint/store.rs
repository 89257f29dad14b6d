//! The folder of a run's checkpoints: one is there completely or not at all, and old ones go when
//! new ones are safe.

use super::manifest::{self, Manifest};
use crate::process::atomic_file;
use anyhow::{Context, Result};
use collective::strategy::Snapshot;
use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Ending of a checkpoint that is being replaced by one of the same step.
const PREVIOUS: &str = "previous";
/// Ending of one that a resumed run has gone back behind.
const ASIDE: &str = "aside";

/// `RUN_DIR/checkpoints`.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

/// Which checkpoints a run keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keep {
    /// The newest so many.
    pub newest: usize,
    /// The step of the best one.
    pub best: Option<usize>,
}

impl Store {
    /// Of the run in `run`; it need not exist yet.
    pub fn of(run: &Path) -> Self {
        Self { folder: run.join("checkpoints") }
    }

    /// Step and folder of every checkpoint, the newest first. Whether they are whole is not checked.
    ///
    /// # Errors
    /// If the folder is there and cannot be read.
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
        // A replaced one, with its longer name, comes behind the one that replaces it.
        found.sort_unstable_by_key(|(step, path)| (std::cmp::Reverse(*step), path.clone()));
        Ok(found)
    }

    /// Writes a checkpoint, then points `last` at it, and `best` if it is, and removes what is not to
    /// be kept. Until the new one is complete and synced, the old ones stay as they are.
    ///
    /// # Errors
    /// If anything cannot be written; what was begun is removed.
    pub(super) fn write(&self, manifest: Manifest, snapshot: &Snapshot, keep: Keep) -> Result<()> {
        let step = snapshot.position.step;
        let path = self.folder.join(name(step));
        let temporary = self.folder.join(format!(".{}.tmp", name(step)));
        let written = fs::create_dir_all(&self.folder).map_err(Into::into).and_then(|()| {
            self.fill(&temporary, &manifest.describe(snapshot), snapshot)?;
            self.put(&temporary, &path)
        });
        if written.is_err() {
            let _ = fs::remove_dir_all(&temporary);
        }
        written.with_context(|| format!("cannot write the checkpoint {}{}", path.display(), self.safe()))?;
        self.tidy(step, keep).with_context(|| format!("cannot tidy {}", self.folder.display()))
    }

    /// Everything of a checkpoint under a name that no one reads.
    fn fill(&self, temporary: &Path, manifest: &Manifest, snapshot: &Snapshot) -> Result<()> {
        remove(temporary)?;
        fs::create_dir(temporary)?;
        for (name, bytes) in manifest::parts(snapshot) {
            atomic_file::write_new(&temporary.join(name), bytes).context(name)?;
        }
        atomic_file::write_new(&temporary.join(manifest::NAME), &manifest.to_bytes()?)
            .context(manifest::NAME)?;
        Ok(atomic_file::sync_folder(temporary)?)
    }

    /// Gives it its name. A checkpoint of the same step, from before its evaluation, makes place, but
    /// counts until the new one is there.
    fn put(&self, temporary: &Path, path: &Path) -> Result<()> {
        if path.exists() {
            let previous = path.with_extension(PREVIOUS);
            remove(&previous)?;
            fs::rename(path, &previous)?;
        }
        fs::rename(temporary, path)?;
        Ok(atomic_file::sync_folder(&self.folder)?)
    }

    fn tidy(&self, step: usize, keep: Keep) -> Result<()> {
        self.link("last", step)?;
        if keep.best == Some(step) {
            self.link("best", step)?;
        }
        self.sweep()?;
        for (_, path) in self.list()?.iter().skip(keep.newest).filter(|(step, _)| keep.best != Some(*step)) {
            remove(path)?;
        }
        Ok(atomic_file::sync_folder(&self.folder)?)
    }

    /// Removes what a killed run began, and what a resumed one set aside.
    fn sweep(&self) -> Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "tmp" || e == ASIDE || e == PREVIOUS) {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Points the link `to` at the checkpoint of `step`, without a moment at which it is not there.
    fn link(&self, to: &str, step: usize) -> io::Result<()> {
        let temporary = self.folder.join(format!(".{to}.tmp"));
        remove(&temporary)?;
        symlink(name(step), &temporary)?;
        fs::rename(temporary, self.folder.join(to))
    }

    /// Takes checkpoints after `step` out of the list: a run that goes on from `step` will write its
    /// own. They are removed once it has written one.
    ///
    /// # Errors
    /// If one cannot be renamed.
    pub fn set_aside_after(&self, step: usize) -> Result<()> {
        for (_, path) in self.list()?.iter().take_while(|(later, _)| *later > step) {
            let aside = path.with_extension(ASIDE);
            remove(&aside)
                .and_then(|()| fs::rename(path, &aside))
                .with_context(|| format!("cannot set {} aside", path.display()))?;
        }
        Ok(())
    }

    /// For an error: what is still there.
    fn safe(&self) -> String {
        let newest = self.list().ok().and_then(|list| list.first().map(|(_, path)| path.clone()));
        newest.map_or_else(String::new, |path| format!(" ({} is whole)", path.display()))
    }
}

fn name(step: usize) -> String {
    format!("step-{step:06}")
}

/// The step of a checkpoint's folder, from its name.
fn step_of(path: &Path) -> Option<usize> {
    let name = path.file_name()?.to_str()?.strip_prefix("step-")?;
    name.strip_suffix(&format!(".{PREVIOUS}")).unwrap_or(name).parse().ok()
}

/// Removes a file, link or folder that may not be there.
fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
