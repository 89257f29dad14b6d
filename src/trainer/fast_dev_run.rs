//! `--fast-dev-run`: a short run through every phase, whose files are removed.

use crate::config::TrainerArgs;
use collective::Secret;
use std::{env, fs, path::PathBuf};

/// Removes the run folder of a short run when it is dropped.
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
