//! `--sync-every`: ranks train on their own between synchronisations of their parameters.

use crate::{
    common::{Run, train},
    metrics::{forecast, forecaster},
};
use std::fs;

const DILOCO: &str = "--lr 0.01 --sync-every 3 --outer-lr 0.7 --outer-momentum 0.9";

#[test]
fn all_transports_give_the_same_run_and_the_loss_falls() {
    let run = |flags: &str| {
        let run = Run::new();
        let outcome = forecaster(&run, &format!("--nproc-per-node 3 --epochs 6 {DILOCO} {flags}"));
        (outcome.succeeded(), run)
    };
    let (outcome, shm) = run("");
    for line in [
        "sync      parameters every 3 steps, outer learning rate 0.7, momentum 0.9\n",
        "lr        0.01 x 1.000 (none) = 0.010000\n",
    ] {
        assert!(outcome.stdout.contains(line), "{line} in {outcome:#?}");
    }
    let (_, tcp) = run("--transport tcp");
    assert_eq!(tcp.digest(), shm.digest());
    assert_eq!(tcp.column("epochs.csv", "train_loss"), shm.column("epochs.csv", "train_loss"));
    let (outcome, overlapped) = run("--sync-overlap 2");
    assert!(outcome.stdout.contains("momentum 0.9, 2 steps during the exchange\n"), "{outcome:#?}");
    let (_, tcp) = run("--sync-overlap 2 --transport tcp");
    assert_eq!(tcp.digest(), overlapped.digest());
    assert_ne!(tcp.digest(), shm.digest());
    assert_eq!(tcp.column("epochs.csv", "train_loss"), overlapped.column("epochs.csv", "train_loss"));
    let losses = overlapped.column("epochs.csv", "test_loss");
    assert!(losses[5] < 0.5 * losses[0], "{losses:?}");
    let losses = run("--outer-lr 1 --outer-momentum 0").1.column("epochs.csv", "test_loss");
    assert!(losses[5] < 0.5 * losses[0], "{losses:?}");
    let (_, compressed) = run("--grad-compression bf16");
    assert_ne!(compressed.digest(), shm.digest());
    // The training loss is that of all ranks: without updates it does not depend on their number.
    let [one, three] = [1, 3].map(|ranks| {
        let flags = format!("--nproc-per-node {ranks} --batch-size {} --sync-every 3 --lr 1e-30", 60 / ranks);
        forecast(&flags).column("epochs.csv", "train_loss")
    });
    assert!((one[0] - three[0]).abs() < 1e-6 * one[0], "{one:?} {three:?}");
}

#[test]
fn every_rank_resumes_with_its_own_optimizer() {
    let flags = format!("--nproc-per-node 3 {DILOCO} --save-every 2 --keep-last 100");
    let whole = forecast(&format!("{flags} --epochs 2"));
    let checkpoints = whole.path.join("checkpoints");
    let states = ["optimizer.bpk", "optimizer-1.bpk", "optimizer-2.bpk"]
        .map(|name| fs::read(checkpoints.join("last").join(name)).expect("a state of AdamW"));
    assert!(states[0] != states[1] && states[1] != states[2]);
    // A save that is due within a round is made at its end.
    assert!(checkpoints.join("step-000003").is_dir() && !checkpoints.join("step-000002").exists());
    let resumed = |whole: &Run, step: &str, flags: &str| {
        let run = whole.copied();
        fs::remove_file(run.path.join("summary.json")).expect("there is one");
        let part = run.path.join("checkpoints").join(step);
        let outcome = forecaster(&run, &format!("{flags} --epochs 2 --resume {}", part.display()));
        (outcome.succeeded().stderr, run.digest())
    };
    let (_, digest) = resumed(&whole, "step-000003", &flags);
    assert_eq!(digest, whole.digest());
    // A save that is due ends a round with steps during the exchange when its end is known to all ranks.
    let overlapped = format!("{flags} --sync-overlap 1");
    let run = forecast(&format!("{overlapped} --epochs 2"));
    let (_, digest) = resumed(&run, "step-000004", &overlapped);
    assert_eq!(digest, run.digest());
    let other = flags.replace("--nproc-per-node 3", "--nproc-per-node 2");
    let (text, _) = resumed(&whole, "step-000003", &other);
    assert!(text.contains("3 ranks had an optimizer each, and 2 have one now"), "{text}");
}

#[test]
fn flags_that_cannot_be_combined_are_named() {
    let Run { path, .. } = &Run::new();
    let run = |flags: &str| {
        train(&format!(
            "--device cpu --dataset subset --max-steps 2 --train-limit 64 --eval-limit 8 --progress plain \
             --run-dir {} {flags}",
            path.display()
        ))
    };
    for (flags, words) in [
        ("--sync-every 2 --scale-lr linear", ["--scale-lr", "one rank's batch"]),
        ("--sync-every 2 --precision f16", ["--precision f16", "different loss scales"]),
        ("--sync-every 2 --mode dp --device-ids cpu:0,cpu:1", ["--sync-every", "use --mode ddp"]),
        ("--sync-every 2 --sync-bn", ["--sync-every", "--sync-bn"]),
        ("--sync-every 2 --shard-optimizer", ["--sync-every", "--shard-optimizer"]),
        ("--sync-every 2 --sync-overlap 2", ["--sync-overlap 2", "less than --sync-every, 2"]),
        ("--sync-every 2 --ema 0.9", ["--sync-every", "--ema"]),
        ("--sync-every 2 --find-lr", ["--sync-every", "--find-lr"]),
        ("--sync-every 0", ["--sync-every", "0"]),
    ] {
        run(flags).failed_with(&words);
    }
    let outcome = run("--outer-momentum 0.9");
    assert!(outcome.code != Some(0) && outcome.stderr.contains("--sync-every <N>"), "{outcome:#?}");
    assert!(!path.exists());
}
