//! TF32 in matrix products and convolutions stays within the tolerance of `scripts/gpu-check`, and mistakes do not.

use crate::{
    common::gpu_check::Check,
    stand_in::{Machine, folder},
};

#[test]
fn the_tolerance_is_between_tf32_and_mistakes() {
    let cache = folder().join("gpu-check");
    let machine = Machine::new(2)
        .with("CUDA_STAND_IN_TF32", 1)
        .with("GPU_CHECK_SMALL", 1)
        .with("XDG_CACHE_HOME", cache.display());
    let check = |ways: &str, mistake: &str| {
        let machine = machine.clone().with("GPU_CHECK_MISTAKE", mistake);
        Check::run(&["correctness", "--only", ways], machine.variables())
    };
    check("sync-bn (single|ddp)$", "").assert_all("passed");
    // A learning rate that is 1 % too high, and statistics per rank.
    for mistake in ["0.002 0.00202", "--sync-bn --batch-norm"] {
        check("sync-bn ddp", mistake).assert_all("failed");
    }
}
