//! The claims of "DataParallel, and why it is slower".

use crate::common::{assert_close, trained};

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
