//! Run folder with `config.json` and `summary.json`.
//!
//! [`log`](super::log) and [`checkpoint`](super::checkpoint) write further files into it.

use super::tensorboard::EventLog;
use crate::{context::Mode, device::LocalDevice, process::atomic_file};
use anyhow::{Context, Result, anyhow, bail};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};
use time::{OffsetDateTime, macros::format_description};

/// File that marks a run folder.
pub(super) const CONFIG: &str = "config.json";

/// Reads what `config.json` says about the run that contains `path`.
///
/// `path` is the run's folder, or a checkpoint or weights file in it.
///
/// # Errors
/// If `path` does not exist or is not in a run folder, or if `config.json` cannot be read as a `T`.
pub fn recorded<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let path = path.canonicalize().context("cannot open the run")?;
    // `path` may be RUN/checkpoints/last/model.bpk.
    let config = path.ancestors().take(4).map(|folder| folder.join(CONFIG)).find(|file| file.is_file());
    let config = config.ok_or_else(|| anyhow!("not in a run folder: there is no config.json"))?;
    let text = fs::read(&config).context("cannot read config.json")?;
    serde_json::from_slice(&text).context("its config.json is not of a run of this program")
}

/// The folder of one run, locked against other trainings. Only rank 0 has one.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Whether this run created the folder.
    created: bool,
    /// Holds the lock.
    _lock: Option<File>,
}

/// Files of a run to which callbacks may add, available on rank 0.
#[derive(Clone)]
pub struct RunFiles {
    /// Run folder.
    pub folder: PathBuf,
    /// TensorBoard's event file.
    pub events: Arc<EventLog>,
}

/// Result of a run, as stored in `summary.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The last evaluations: `test_METRIC` and, with `--valid-split`, `valid_METRIC`.
    ///
    /// `None` is a value that is not finite.
    #[serde(flatten)]
    pub metrics: BTreeMap<String, Option<f64>>,
    /// Last values of callbacks, by name: numbers or text.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub callbacks: Map<String, Value>,
    /// Training samples of all ranks per second of training steps, without evaluation.
    pub samples_per_second: f64,
    pub world_size: usize,
    pub mode: Mode,
    pub device: LocalDevice,
    pub transport: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Number of epochs, counting a partial one.
    pub epochs: usize,
    /// Number of optimizer steps.
    pub steps: usize,
    /// Seconds from the start of rank 0 to the end of the last evaluation.
    pub seconds: f64,
    /// SHA-256 of all parameters and buffers, equal on all ranks.
    pub parameter_digest: String,
}

impl RunFolder {
    /// Creates the run folder `path`, or a new `runs/<date-time>`.
    ///
    /// A number is appended if another run has started in the same second.
    ///
    /// # Errors
    /// If the folder already contains a run, another training writes to it, or it cannot be created.
    pub fn create(path: Option<PathBuf>) -> Result<Self> {
        let Some(path) = path else { return Self::fresh(Path::new("runs"), &timestamp()?) };
        let (created, shown) = (!path.exists(), path.display());
        fs::create_dir_all(&path).with_context(|| format!("cannot create --run-dir {shown}"))?;
        let folder = Self::locked(path, created)?;
        if folder.holds_run() {
            let path = folder.path.display();
            bail!("--run-dir {path} already contains a run; name another folder, remove it, or add --resume");
        }
        Ok(folder)
    }

    /// Opens the folder of a resumed run and creates it if necessary.
    ///
    /// # Errors
    /// If the folder cannot be created, or another training writes to it.
    pub fn reopen(path: PathBuf) -> Result<Self> {
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Self::locked(path, false)
    }

    fn locked(path: PathBuf, created: bool) -> Result<Self> {
        Ok(Self { _lock: lock(&path)?, path, created })
    }

    /// Creates a new folder in `parent`.
    fn fresh(parent: &Path, name: &str) -> Result<Self> {
        let failed = |path: &Path| {
            format!("cannot create the run folder {}; choose one with --run-dir", path.display())
        };
        fs::create_dir_all(parent).with_context(|| failed(parent))?;
        let mut path = parent.join(name);
        for number in 2.. {
            match fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    path = parent.join(format!("{name}-{number}"));
                }
                made => {
                    made.with_context(|| failed(&path))?;
                    break;
                }
            }
        }
        Self::locked(path, true)
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the folder contains a run.
    pub fn holds_run(&self) -> bool {
        self.path.join(CONFIG).exists()
    }

    /// Writes a JSON file.
    ///
    /// # Errors
    /// If the value cannot be serialised or the file cannot be written.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        atomic_file::write(&self.path.join(name), &serde_json::to_vec_pretty(value)?)
    }

    /// Removes configuration and tables, and the folder if it is then empty. Errors are ignored.
    pub fn remove(&self) {
        for name in [CONFIG, "steps.csv", "epochs.csv", "ranks.csv", "mlflow.json"] {
            let _ = fs::remove_file(self.path.join(name));
        }
        self.remove_empty();
    }

    /// Removes the folder if this run created it and it is empty. Errors are ignored.
    pub fn remove_empty(&self) {
        if self.created {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Locks a run folder until the file is dropped, if it exists and its file system supports locks.
///
/// # Errors
/// If another training has locked the folder for two seconds.
pub(super) fn lock(path: &Path) -> Result<Option<File>> {
    let Ok(folder) = File::open(path) else { return Ok(None) };
    // The ranks of a killed launcher may end a moment later.
    for _ in 0..20 {
        match folder.try_lock() {
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(100)),
            locked => return Ok(locked.is_ok().then_some(folder)),
        }
    }
    let path = path.display();
    bail!("another training is writing to {path}; wait for its end, or choose another --run-dir")
}

/// Returns the current UTC time as a sortable file name.
///
/// # Errors
/// If the time cannot be formatted.
pub fn timestamp() -> Result<String> {
    let format = format_description!("[year]-[month]-[day]T[hour]-[minute]-[second]Z");
    Ok(OffsetDateTime::now_utc().format(&format)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folder_that_the_run_created_is_removed() -> Result<()> {
        let parent = tempfile::tempdir()?;
        let path = |name| parent.path().join(name);
        fs::create_dir(path("before"))?;
        for name in ["before", "new", "used"] {
            let folder = RunFolder::create(Some(path(name)))?;
            if name == "used" {
                fs::write(path("used/steps.csv"), "a user's file")?;
            }
            folder.remove_empty();
        }
        assert!(path("before").is_dir() && !path("new").exists() && path("used/steps.csv").is_file());
        Ok(())
    }

    #[test]
    fn runs_of_the_same_second_get_different_folders() -> Result<()> {
        let parent = tempfile::tempdir()?;
        let folders = (0..3).map(|_| RunFolder::fresh(parent.path(), "now")).collect::<Result<Vec<_>>>()?;
        let names: Vec<_> = folders.iter().filter_map(|folder| folder.path().file_name()).collect();
        assert_eq!(names, ["now", "now-2", "now-3"]);
        Ok(())
    }
}
