//! `--shard-optimizer`: the same run as with a whole optimizer on every rank.

use crate::{
    common::{Run, train},
    metrics::{forecast, forecaster},
};
use burn::optim::OptimizerRecord;

#[test]
fn runs_and_checkpoints_are_those_of_a_whole_optimizer() {
    for flags in [
        "--nproc-per-node 3 --clip-grad-norm 0.5 --ema 0.9 --load-best",
        "--nproc-per-node 2 --grad-accum-steps 2 --precision f16 --transport tcp",
    ] {
        let [whole, sharded] = ["", "--shard-optimizer"].map(|more| {
            let run = Run::new();
            let outcome = forecaster(&run, &format!("{flags} --epochs 2 --lr 0.01 {more}"));
            assert!(outcome.succeeded().stderr.is_empty());
            run
        });
        assert_eq!(sharded.digest(), whole.digest(), "{flags}");
        assert_eq!(sharded.losses(), whole.losses(), "{flags}");
        let tensors = |run: &Run| {
            let record = OptimizerRecord::load(run.path.join("checkpoints/last/optimizer.bpk"));
            record.expect("a record").len()
        };
        assert_eq!(tensors(&sharded), tensors(&whole), "{flags}");
        assert!(tensors(&whole) > 0);
    }
}

/// A checkpoint with or without sharding is resumed with or without it, at another world size.
#[test]
fn a_checkpoint_is_resumed_at_any_world_size() {
    let flags = "--lr 0.01 --scale-lr none";
    let resumed = |from: &Run, more: &str| {
        let run = from.copied();
        let more = format!("--nproc-per-node 3 --batch-size 20 --epochs 2 --resume {more}");
        forecaster(&run, &format!("{flags} {more}")).succeeded();
        run.digest()
    };
    let [whole, sharded] = ["", "--shard-optimizer"]
        .map(|more| forecast(&format!("{flags} --nproc-per-node 2 --batch-size 30 --epochs 1 {more}")));
    let expected = resumed(&whole, "");
    assert_eq!(resumed(&whole, "--shard-optimizer"), expected);
    assert_eq!(resumed(&sharded, ""), expected);
    assert_eq!(resumed(&sharded, "--shard-optimizer"), expected);
}

#[test]
fn what_cannot_be_sharded_is_named() {
    let Run { path, .. } = &Run::new();
    let run = |flags: &str| {
        train(&format!(
            "--device cpu --dataset subset --max-steps 2 --train-limit 64 --eval-limit 8 --progress plain \
             --shard-optimizer --run-dir {} {flags}",
            path.display()
        ))
    };
    run("--mode dp --device-ids cpu:0,cpu:1")
        .failed_with(&["--shard-optimizer", "--mode dp has one optimizer"]);
    run("--nproc-per-node 2 --histograms=1").failed_with(&["--histograms", "no rank has all gradients"]);
    let outcome = run("--mode single").succeeded();
    assert!(outcome.stderr.contains("shard_optimizer has no effect on one rank"), "{outcome:#?}");
}
