//! The claims of "DataParallel, and why it is slower".

use crate::common::{assert_close, run_example, trained};

#[test]
fn one_loop_gives_one_curve_in_every_mode() {
    let last = |flags: &str| {
        let outcome = run_example("custom_loop", flags).succeeded();
        outcome.stdout.lines().last().expect("ten epochs").to_owned()
    };
    for mode in ["single", "dp --device-ids cpu:0,cpu:1", "ddp --device cpu --nproc-per-node 2"]
        .map(|mode| format!("--mode {mode}"))
    {
        assert_eq!(last(&mode), "epoch 10  train loss 0.000068", "{mode}");
    }
}

#[test]
fn dp_and_ddp_train_the_same_model() {
    let flags = "--dataset subset --train-limit 640 --eval-limit 50 --dropout 0 --scale-lr none --threads 1";
    let single = trained(&format!("{flags} --mode single --batch-size 64")).losses();
    let dp = trained(&format!("{flags} --mode dp --device-ids cpu:0,cpu:1 --batch-size 64")).losses();
    let ddp = trained(&format!("{flags} --nproc-per-node 2 --batch-size 32")).losses();
    assert_eq!(single.len(), 10);
    assert_close("DP", &dp, &single, 1e-4);
    assert_close("DDP", &ddp, &single, 1e-4);
}

#[test]
fn all_modes_train_the_same_model_in_16_bits() {
    let flags = "--dataset subset --train-limit 256 --eval-limit 20 --dropout 0 --scale-lr none --threads 1";
    let run = |flags_of_mode: &str| trained(&format!("{flags} {flags_of_mode}")).losses();
    let exact = run("--mode single");
    for way in ["--mode single", "--mode dp --device-ids cpu:0,cpu:1", "--nproc-per-node 2 --batch-size 32"] {
        let losses = run(&format!("{way} --precision bf16"));
        assert_close(way, &losses, &exact, 0.1);
        assert_ne!(losses, exact, "{way}");
    }
}
