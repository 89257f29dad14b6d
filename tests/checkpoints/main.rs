//! Checkpoints of the real program: going on from them changes nothing, damaged ones are refused,
//! and a run that is told to stop stops on all ranks together.

#[path = "../common/mod.rs"]
mod common;
mod damage;
mod resume;
mod stopping;

use common::{Outcome, Run, train, trained};
use std::{fs, path::Path};

/// Six steps an epoch at a global batch of 16, the last one short.
const SMALL: &str = "--dataset digits --train-limit 90 --eval-limit 20 --lr 0.01 --epochs 2 --keep-last 100";

/// `SMALL` with checkpoints after each two steps.
fn checkpointed(flags: &str) -> Run {
    trained(&format!("{SMALL} --save-every 2 {flags}"))
}

/// The same with `--resume` and a path in the run's folder.
fn resume(run: &Path, part: &str, flags: &str) -> Outcome {
    let path = run.join(part);
    train(&format!(
        "--device cpu --progress plain --save-every 2 {SMALL} {flags} --resume {}",
        path.display()
    ))
}

/// A copy of a run's folder, to be damaged.
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
