//! The claims of "Checkpoints and resuming".

use crate::common::{
    Outcome, Run, example_command, finish,
    launched::{signal, steps, wait_until},
    processes_with, run_example, train, trained,
};
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

#[test]
fn a_killed_run_resumes_to_the_parameters_of_an_uninterrupted_one() {
    let marker = "chapter-checkpoints";
    let flags = "--dataset subset --train-limit 960 --eval-limit 20 --nproc-per-node 2 --batch-size 8 --epochs 2 \
                 --save-every 7";
    let whole = trained(flags);
    let flags = format!("--device cpu --progress plain {flags}");
    let run = Run::new();
    let mut launcher = example_command("mnist_ddp", &flags);
    launcher.arg("--run-dir").arg(&run.path).env("BURN_DDP_TEST", marker);
    let launcher = launcher.spawn().expect("built");
    let saved = run.path.join("checkpoints/last");
    wait_until("some steps and a checkpoint", || steps(&run.path) > 9 && saved.exists());
    signal(launcher.id(), libc::SIGKILL);
    assert_eq!(finish(launcher).code, None, "it ended before it was killed");
    wait_until("its ranks are gone", || processes_with(marker).is_empty());

    let outcome = train(&format!("{flags} --resume {}", run.path.display())).succeeded();
    assert!(outcome.stdout.contains("resume ") && outcome.stdout.contains("after step"), "{outcome:#?}");
    assert_eq!(run.digest(), whole.digest());
    assert_eq!(run.losses(), whole.losses());
    let all: Vec<f64> = (1..=120u8).map(f64::from).collect();
    assert_eq!(run.column("steps.csv", "step"), all);
}
