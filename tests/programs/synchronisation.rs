//! Gradient synchronisation flags in whole runs of the real program.

use crate::common::{self, assert_close, train, trained};

/// Steps of 64 images, the same for all flags.
const SMALL: &str =
    "--dataset subset --train-limit 640 --eval-limit 50 --dropout 0 --scale-lr none --lr 0.02";

#[test]
fn accumulating_four_batches_of_16_equals_a_batch_of_64() {
    for (whole, parts) in [
        ("--mode single --batch-size 64", "--mode single --batch-size 16 --grad-accum-steps 4"),
        ("--nproc-per-node 2 --batch-size 32", "--nproc-per-node 2 --batch-size 8 --grad-accum-steps 4"),
    ] {
        let (whole, parts) = (trained(&format!("{SMALL} {whole}")), trained(&format!("{SMALL} {parts}")));
        assert_eq!(whole.losses().len(), 10);
        assert_close("loss", &parts.losses(), &whole.losses(), 1e-5);
        let test = |run: &common::Run| run.column("epochs.csv", "test_loss");
        assert_close("test loss", &test(&parts), &test(&whole), 1e-5);
    }
}

#[test]
fn the_last_step_of_an_epoch_has_the_remaining_batches_on_uneven_ranks() {
    // 500 samples: 11 batches of 48 over 3 ranks, the last one short and uneven; 3 steps of 4, 4 and 3.
    let flags =
        "--dataset subset --train-limit 500 --eval-limit 50 --dropout 0 --scale-lr none --lr 0.02 --epochs 2";
    let three = trained(&format!("{flags} --nproc-per-node 3 --batch-size 16 --grad-accum-steps 4"));
    let one = trained(&format!("{flags} --mode single --batch-size 48 --grad-accum-steps 4"));
    assert_eq!(three.losses().len(), 6);
    assert_close("loss", &three.losses(), &one.losses(), 1e-4);
}

#[test]
fn overlap_and_bucket_sizes_do_not_change_results() {
    let run = |flags: &str| trained(&format!("{SMALL} --nproc-per-node 2 --batch-size 32 {flags}")).digest();
    let plain = run("");
    for flags in
        ["--no-overlap", "--first-bucket-mb 0.001 --bucket-cap-mb 0.2", "--bucket-cap-mb 0.2 --no-overlap"]
    {
        assert_eq!(run(flags), plain, "{flags}");
    }
}

#[test]
fn every_compression_trains_and_is_recorded() {
    let run = |hook: &str| {
        trained(&format!("{SMALL} --nproc-per-node 2 --batch-size 32 --grad-compression {hook}"))
    };
    let exact = run("none");
    for (hook, name) in
        [("bf16", "bf16"), ("fp16", "fp16"), ("topk:0.1", "topk:0.1"), ("powersgd", "powersgd:4")]
    {
        let run = run(hook);
        assert_eq!(run.json("config.json")["grad_compression"], name);
        assert_ne!(run.digest(), exact.digest(), "{hook} does something");
        let (ours, theirs) = (run.losses(), exact.losses());
        assert!((ours[9] - theirs[9]).abs() < 0.3, "{hook}: {ours:?} against {theirs:?}");
    }
}

#[test]
fn clipping_has_the_same_effect_at_every_world_size() {
    let run = |flags: &str| trained(&format!("{SMALL} --clip-grad-norm 0.01 {flags}"));
    let (one, two) = (run("--mode single --batch-size 64"), run("--nproc-per-node 2 --batch-size 32"));
    assert_close("clipped loss", &two.losses(), &one.losses(), 1e-4);
    let free = trained(&format!("{SMALL} --mode single --batch-size 64"));
    let (held, free) = (one.losses()[9], free.losses()[9]);
    assert!(held > free + 0.1, "{held} with a clip, {free} without");
}

#[test]
fn mixed_precision_follows_f32_and_is_recorded() {
    let run = |flags: &str| trained(&format!("{SMALL} {flags}"));
    // Few steps, because f16 soon overflows in one and skips it, after which the trajectories differ.
    for world in [
        "--mode single --max-steps 4",
        "--nproc-per-node 2 --batch-size 32 --batch-norm --max-steps 4",
        "--mode dp --device-ids cpu:0,cpu:1 --max-steps 4",
        "--mode dp --device-ids cpu:0,cpu:1,cpu:2 --dp-reduce all-reduce --sync-bn --max-steps 4",
    ] {
        let exact = run(world);
        for (precision, tolerance) in [("f16", 0.02), ("bf16", 0.1)] {
            let run = run(&format!("{world} --precision {precision}"));
            assert_eq!(run.json("config.json")["precision"], precision);
            assert_ne!(run.digest(), exact.digest(), "{precision} does something");
            assert_close("loss", &run.losses(), &exact.losses(), tolerance);
        }
    }
}

#[test]
fn invalid_flags_are_rejected_by_name() {
    for (flags, named) in [
        ("--grad-compression zip", "powersgd"),
        ("--grad-compression topk:0", "ratio 0"),
        ("--clip-grad-norm 0", "--clip-grad-norm"),
        ("--grad-accum-steps 0", "--grad-accum-steps"),
        ("--precision fp8", "f32, bf16 or f16"),
    ] {
        let outcome = train(flags);
        assert_eq!(outcome.code, Some(2), "{outcome:#?}");
        assert!(outcome.stderr.contains(named), "{flags}: {}", outcome.stderr);
    }
}
