//! Checkpoints of the real program: exact resume, damaged checkpoints, and graceful shutdown of all ranks.

mod damage;
mod resume;
mod stopping;

use crate::common::{Outcome, Run, train, trained};
use std::{fs, path::Path};

/// Six steps per epoch at a global batch of 16, the last one short.
const SMALL: &str = "--dataset digits --train-limit 90 --eval-limit 20 --lr 0.01 --epochs 2 --keep-last 100";

/// Trains with the flags `SMALL` and a checkpoint every two steps.
fn checkpointed(flags: &str) -> Run {
    trained(&format!("{SMALL} --save-every 2 {flags}"))
}

/// Runs with the flags `SMALL` and `--resume` with a path in the run's folder.
fn resume(run: &Path, part: &str, flags: &str) -> Outcome {
    let path = run.join(part);
    train(&format!(
        "--device cpu --progress plain --save-every 2 {SMALL} {flags} --resume {}",
        path.display()
    ))
}

/// Copies a run's folder.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("folder");
    for entry in fs::read_dir(from).expect("folder") {
        let (path, kind) = entry.map(|e| (e.path(), e.file_type().expect("type"))).expect("entry");
        let target = to.join(path.file_name().expect("name"));
        if kind.is_dir() {
            copy(&path, &target);
        } else if kind.is_file() {
            fs::copy(&path, &target).expect("copied");
        }
    }
}
