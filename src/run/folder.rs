//! What a run leaves behind: `config.json`, `summary.json`, the model, and beside them what
//! [`log`](super::log) and [`checkpoint`](super::checkpoint) write.

use crate::{config::Config, context::Mode, device::LocalDevice, process::atomic_file};
use anyhow::{Context, Result, bail};
use burn::module::Module;
use serde::Serialize;
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};
use time::{OffsetDateTime, macros::format_description};

/// The file that marks a folder as a run's.
const CONFIG: &str = "config.json";

/// The folder of one run. Only rank 0 has one.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
}

/// The result of a run, as `summary.json` keeps it.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// 0 to 1; only of a classifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_accuracy: Option<f64>,
    pub test_loss: f64,
    /// Last evaluation of the validation set; only with `--valid-split`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_accuracy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid_loss: Option<f64>,
    /// Training samples over all ranks, over the time of the training steps alone.
    pub samples_per_second: f64,
    pub world_size: usize,
    pub mode: Mode,
    pub device: LocalDevice,
    pub transport: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Epochs begun, and optimizer steps done.
    pub epochs: usize,
    pub steps: usize,
    /// From the first rank's start to the end of the last evaluation.
    pub seconds: f64,
    /// SHA-256 over all parameters and buffers, equal on all ranks.
    pub parameter_digest: String,
}

impl RunFolder {
    /// Creates `path`, or a new `runs/<date-time>`, with a number behind it if another run began in the
    /// same second.
    ///
    /// # Errors
    /// If the folder holds a run already, or cannot be written to.
    pub fn create(path: Option<PathBuf>) -> Result<Self> {
        let Some(path) = path else { return Self::fresh(Path::new("runs"), &timestamp()?) };
        let folder = Self { path };
        let path = folder.path.display();
        if folder.holds_run() {
            bail!("--run-dir {path} holds a run already; name another folder, remove it, or add --resume");
        }
        fs::create_dir_all(&folder.path).with_context(|| format!("cannot create --run-dir {path}"))?;
        Ok(folder)
    }

    /// The folder of a run that goes on, or that was started with `--resume` from the beginning.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn reopen(path: PathBuf) -> Result<Self> {
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path })
    }

    /// A folder in `parent` that was not there before.
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
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a run has begun in the folder.
    pub fn holds_run(&self) -> bool {
        self.path.join(CONFIG).exists()
    }

    pub fn write_config(&self, config: &Config) -> Result<()> {
        self.write(CONFIG, &serde_json::to_vec_pretty(config)?)
    }

    pub fn write_summary(&self, summary: &Summary) -> Result<()> {
        self.write("summary.json", &serde_json::to_vec_pretty(summary)?)
    }

    /// The model as a Burn record, `model.bpk`.
    pub fn write_model<M: Module>(&self, model: M) -> Result<()> {
        let bytes =
            model.into_record().into_bytes().map_err(|e| anyhow::anyhow!("cannot pack the model: {e}"))?;
        self.write("model.bpk", &bytes)
    }

    /// Removes configuration and tables, and the folder if nothing else is in it. What cannot be removed
    /// stays.
    pub fn remove(&self) {
        for name in [CONFIG, "steps.csv", "epochs.csv", "ranks.csv"] {
            let _ = fs::remove_file(self.path.join(name));
        }
        let _ = fs::remove_dir(&self.path);
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        atomic_file::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The time in UTC, sortable, and fit for a file name on every system.
///
/// # Errors
/// If the clock is beyond what the format can write.
pub fn timestamp() -> Result<String> {
    let format = format_description!("[year]-[month]-[day]T[hour]-[minute]-[second]Z");
    Ok(OffsetDateTime::now_utc().format(&format)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_the_same_second_get_folders_of_their_own() -> Result<()> {
        let parent = tempfile::tempdir()?;
        let folders = (0..3).map(|_| RunFolder::fresh(parent.path(), "now")).collect::<Result<Vec<_>>>()?;
        let names: Vec<_> = folders.iter().filter_map(|folder| folder.path().file_name()).collect();
        assert_eq!(names, ["now", "now-2", "now-3"]);
        Ok(())
    }
}
