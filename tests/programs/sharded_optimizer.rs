//! `--shard-optimizer`: the same run as with a whole optimizer on every rank.

use crate::{
    common::{Run, copy_folder, train},
    metrics::forecaster,
};
use burn::optim::OptimizerRecord;
use std::fs;

#[test]
fn runs_and_checkpoints_are_those_of_a_whole_optimizer() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path();
    for flags in [
        "--nproc-per-node 3 --clip-grad-norm 0.5 --ema 0.9 --load-best",
        "--nproc-per-node 2 --grad-accum-steps 2 --precision f16 --transport tcp",
    ] {
        let run = |name: &str, more: &str| {
            let (outcome, run) = forecaster(path, name, &format!("{flags} --epochs 2 --lr 0.01 {more}"));
            assert!(outcome.succeeded().stderr.is_empty());
            run
        };
        let [whole, sharded] =
            [("whole", ""), ("sharded", "--shard-optimizer")].map(|(name, more)| run(name, more));
        assert_eq!(sharded.digest(), whole.digest(), "{flags}");
        assert_eq!(sharded.losses(), whole.losses(), "{flags}");
        let tensors = |run: &Run| {
            let record = OptimizerRecord::load(run.path.join("checkpoints/last/optimizer.bpk"));
            record.expect("a record").len()
        };
        assert_eq!(tensors(&sharded), tensors(&whole), "{flags}");
        assert!(tensors(&whole) > 0);
        [whole, sharded].iter().for_each(|run| fs::remove_dir_all(&run.path).expect("removed"));
    }
}

/// A checkpoint with or without sharding is resumed with or without it, at another world size.
#[test]
fn a_checkpoint_is_resumed_at_any_world_size() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path();
    let flags = "--lr 0.01 --scale-lr none";
    let resumed = |from: &Run, name: &str, more: &str| {
        copy_folder(&from.path, &path.join(name));
        let (outcome, run) = forecaster(
            path,
            name,
            &format!("{flags} --nproc-per-node 3 --batch-size 20 --epochs 2 --resume {more}"),
        );
        outcome.succeeded();
        run.digest()
    };
    let start = |name: &str, more: &str| {
        let (outcome, run) =
            forecaster(path, name, &format!("{flags} --nproc-per-node 2 --batch-size 30 --epochs 1 {more}"));
        outcome.succeeded();
        run
    };
    let [whole, sharded] =
        [("whole", ""), ("sharded", "--shard-optimizer")].map(|(name, more)| start(name, more));
    let expected = resumed(&whole, "a", "");
    assert_eq!(resumed(&whole, "b", "--shard-optimizer"), expected);
    assert_eq!(resumed(&sharded, "c", ""), expected);
    assert_eq!(resumed(&sharded, "d", "--shard-optimizer"), expected);
}

#[test]
fn what_cannot_be_sharded_is_named() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let run = |flags: &str| {
        train(&format!(
            "--device cpu --dataset subset --max-steps 2 --train-limit 64 --eval-limit 8 --progress plain \
             --shard-optimizer --run-dir {} {flags}",
            folder.path().join("run").display()
        ))
    };
    run("--mode dp --device-ids cpu:0,cpu:1")
        .failed_with(&["--shard-optimizer", "--mode dp has one optimizer"]);
    run("--nproc-per-node 2 --histograms=1").failed_with(&["--histograms", "no rank has all gradients"]);
    let outcome = run("--mode single").succeeded();
    assert!(outcome.stderr.contains("shard_optimizer has no effect on one rank"), "{outcome:#?}");
}
