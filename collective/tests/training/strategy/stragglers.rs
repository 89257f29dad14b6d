//! A rank that is slower than the others.

use super::{Rank, fit_all};
use std::{thread, time::Duration};

#[test]
fn a_rank_that_waits_for_its_batches_is_named_on_all_ranks() {
    let slow = |_| {
        thread::sleep(Duration::from_millis(20));
        1.0
    };
    let rank = |rank| Rank { epochs: 4, factor: if rank == 1 { slow } else { |_| 1.0 }, ..Rank::default() };
    for told in fit_all(2, rank, |_, ddp| ddp) {
        assert_eq!(told.steps.len(), 20);
        let [warning] = &told.warnings[..] else { panic!("one warning: {:?}", told.warnings) };
        assert!(warning.starts_with("rank 1 is slow: waiting for data takes "), "{warning}");
        assert!(warning.ends_with("(steps 11 to 20)"), "{warning}");
    }
}
