//! The claims of the chapter on hiding communication.

use crate::common::run_example;

/// The program fails if a bucket size, or the overlap, changes the gradients.
#[test]
fn bucket_sizes_and_overlap_do_not_change_the_gradients() {
    let flags = "--device cpu --nproc-per-node 2 --steps 1 --batch-size 4 --gbit 0";
    let outcome = run_example("buckets", flags).succeeded();
    let rows: Vec<Vec<&str>> = outcome.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    for (size, buckets) in [("0.25", "96"), ("1", "24"), ("5", "5"), ("25", "1")] {
        let row = rows.iter().find(|row| row.first() == Some(&size));
        assert_eq!(row.map(|row| row[1]), Some(buckets), "{outcome:#?}");
    }
    assert!(outcome.stdout.contains("all steps gave parameters"), "{outcome:#?}");
}
