//! Experiment trackers of a run, on rank 0.

#[cfg(feature = "mlflow")]
use super::mlflow;
use super::{EvaluatedSet, RunFolder};
use crate::{config::Config, process::console::Console};
use anyhow::Result;
use collective::strategy::Observer;
use std::{path::PathBuf, sync::Arc};

/// Final status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Finished,
    Failed,
    /// Stopped by a signal.
    Killed,
}

/// An observer that logs a run to a server.
pub trait Tracker: Observer {
    /// Address of the server and name of the experiment, for display.
    fn destination(&self) -> String;

    /// Sends the remaining points, `status` and `files`. Only the first call has an effect.
    ///
    /// The wait is bounded. What is not sent is a warning.
    fn close(&self, status: Status, files: Vec<PathBuf>);
}

/// Verifies `--mlflow`.
///
/// # Errors
/// If `uri` is not the address of a server, or the program was built without the feature `mlflow`.
pub fn check(uri: &str) -> Result<()> {
    #[cfg(feature = "mlflow")]
    return mlflow::Server::check(uri);
    #[cfg(not(feature = "mlflow"))]
    anyhow::bail!("{uri}: this program was built without the feature `mlflow`");
}

/// Starts the tracker of a new or resumed run, if there is one.
///
/// # Errors
/// As for [`check`], or if a thread cannot be started.
#[cfg(feature = "mlflow")]
pub(super) fn start(
    config: &Config,
    folder: &RunFolder,
    is_resumed: bool,
    console: Console,
) -> Result<Option<Arc<dyn Tracker>>> {
    let Some(uri) = &config.args.mlflow else { return Ok(None) };
    let mut settings = serde_json::to_value(config)?;
    // Flags repeat the settings, and metrics are no settings.
    settings.as_object_mut().map(|settings| ["flags", "metrics"].map(|name| settings.remove(name)));
    let path = folder.path().canonicalize().unwrap_or_else(|_| folder.path().into());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if !is_resumed {
        // A run that failed before its first step may have left it.
        let _ = std::fs::remove_file(path.join(mlflow::RUN_FILE));
    }
    let info =
        mlflow::RunInfo::new(config.args.mlflow_experiment.as_deref(), &name, &settings).in_folder(&path);
    let set = EvaluatedSet::from_config(config);
    let run = mlflow::MlflowRun::start(mlflow::Server::new(uri)?, info, set, console)?;
    Ok(Some(Arc::new(run)))
}

/// Starts no tracker.
///
/// # Errors
/// If a tracker is requested.
#[cfg(not(feature = "mlflow"))]
pub(super) fn start(config: &Config, _: &RunFolder, _: bool, _: Console) -> Result<Option<Arc<dyn Tracker>>> {
    config.args.mlflow.as_deref().map_or(Ok(()), check).map(|()| None)
}
