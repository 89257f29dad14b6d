//! The claims of "Checkpoints and resuming".

use crate::common::{Outcome, run_example};
use std::path::Path;

/// Runs the course's program and returns the digest of the parameters.
fn digest(folder: &Path, flags: &str) -> String {
    let flags = format!("--device cpu --nproc-per-node 2 --folder {} {flags}", folder.display());
    let Outcome { stdout, .. } = run_example("checkpoints", &flags).succeeded();
    stdout.lines().find_map(|line| line.strip_prefix("parameters ")).expect("a digest").to_owned()
}

#[test]
fn a_resumed_loop_is_bit_identical_unless_a_part_is_forgotten() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let whole = digest(&folder.path().join("whole"), "");
    for (flags, equal) in [("", true), ("--forget optimizer", false), ("--forget epoch", false)] {
        let part = folder.path().join(flags.replace(' ', "-")).join("part");
        assert_ne!(digest(&part, "--epochs 5"), whole);
        assert_eq!(digest(&part, flags) == whole, equal, "{flags}");
    }
}
