//! Checkpoints of the real program: exact resume, damaged checkpoints, and graceful shutdown of all ranks.

mod damage;
mod resume;
mod stopping;

use crate::common::{Outcome, Run, train, trained};
use std::path::Path;

/// Six steps per epoch at a global batch of 16, the last one short. A checkpoint has 0.7 MB.
const SMALL: &str = "--dataset subset --train-limit 90 --eval-limit 20 --lr 0.01 --epochs 2 --keep-last 100 \
                     --network lenet";

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
