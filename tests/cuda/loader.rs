//! Device memory of a data loader whose threads build batches on the device.

use crate::{kernel_cache::count, stand_in::Machine};

#[test]
fn memory_does_not_grow_from_epoch_to_epoch() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let counts = folder.path().join("counts");
    let machine = Machine::new(1).with("CUDA_STAND_IN_COUNTS", counts.display());
    let outcome = machine.example("custom_loop", "--mode single --device cuda").succeeded();
    assert!(outcome.stdout.contains("epoch 10"), "{outcome:#?}");
    let count = |what: &str| count(&counts, what);
    let (last, all) = (count("launches before the last allocation"), count("launches"));
    assert!(
        last < all / 5,
        "the last of {} allocations follows {last} of {all} launches",
        count("allocations")
    );
}
