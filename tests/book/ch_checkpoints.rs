//! The claims of "Checkpoints and resuming".

use crate::common::{
    Outcome, Run, command, finish,
    launched::{signal, wait_until},
    mnist, processes_with, run_example, train, trained,
};
use std::{fs, path::Path};

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

#[test]
fn a_killed_run_resumes_to_the_parameters_of_an_uninterrupted_one() {
    let marker = "chapter-checkpoints";
    let flags = "--dataset subset --train-limit 960 --eval-limit 20 --nproc-per-node 2 --batch-size 8 --epochs 2 \
                 --save-every 7";
    let whole = trained(flags);
    let flags = format!("--device cpu --progress plain {flags}");
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("run");
    let mut launcher = command(&mnist(), &flags.split_whitespace().collect::<Vec<_>>());
    let launcher = launcher.arg("--run-dir").arg(&path).env("BURN_DDP_TEST", marker).spawn().expect("built");
    let rows = || fs::read_to_string(path.join("steps.csv")).map_or(0, |text| text.lines().count());
    let saved = path.join("checkpoints/last");
    wait_until("some steps and a checkpoint", || rows() > 10 && saved.exists());
    signal(launcher.id(), libc::SIGKILL);
    assert_eq!(finish(launcher).code, None, "it ended before it was killed");
    wait_until("its ranks are gone", || processes_with(marker).is_empty());

    let outcome = train(&format!("{flags} --resume {}", path.display())).succeeded();
    assert!(outcome.stdout.contains("resume ") && outcome.stdout.contains("after step"), "{outcome:#?}");
    let resumed = Run::at(path);
    assert_eq!(resumed.digest(), whole.digest());
    assert_eq!(resumed.losses(), whole.losses());
    let steps: Vec<f64> = (1..=120u8).map(f64::from).collect();
    assert_eq!(resumed.column("steps.csv", "step"), steps);
}
