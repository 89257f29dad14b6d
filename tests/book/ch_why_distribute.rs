//! The claims of "Why distribute?".

use crate::common::{assert_close, trained};

#[test]
fn neither_threads_nor_ranks_change_the_training() {
    let run = |flags: &str| {
        let common = "--dataset subset --train-limit 640 --eval-limit 50 --dropout 0 --scale-lr none";
        trained(&format!("{common} {flags}"))
    };
    let one = run("--mode single --threads 1 --batch-size 128");
    let threads = run("--mode single --threads 2 --batch-size 128");
    assert_eq!(threads.digest(), one.digest());
    for ranks in [2, 4] {
        let flags = format!("--nproc-per-node {ranks} --threads 1 --batch-size {}", 128 / ranks);
        assert_close(&format!("{ranks} ranks"), &run(&flags).losses(), &one.losses(), 1e-4);
    }
}
