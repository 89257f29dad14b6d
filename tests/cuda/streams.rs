//! Order between Burn's streams and NCCL's.
//!
//! The stand-in executes streams in random order, constrained only by events, so that a missing dependency changes the
//! result: `overlap.rs` and `ordering.rs` verify that.

use crate::{
    common::assert_close,
    stand_in::{Machine, TINY},
};

#[test]
fn results_do_not_depend_on_the_order_of_streams() {
    let flags = format!("{TINY} --mode ddp --nproc-per-node 2 --transport nccl --batch-size 12");
    let expected = Machine::new(2).losses(&flags);
    for seed in 2..=3 {
        println!("CUDA_STAND_IN_SEED={seed}");
        let found = Machine::new(2).with("CUDA_STAND_IN_SEED", seed).losses(&flags);
        assert_close(&format!("seed {seed}"), &found, &expected, 0.0);
    }
}
