//! Device memory of a data loader whose threads build batches on the device.

use crate::stand_in::Machine;
use std::fs;

#[test]
fn memory_does_not_grow_from_epoch_to_epoch() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let machine = Machine::new(1).with("CUDA_STAND_IN_COUNTS", folder.path().join("counts").display());
    let outcome = machine.example("custom_loop", "--mode single --device cuda").succeeded();
    assert!(outcome.stdout.contains("epoch 10"), "{outcome:#?}");
    let files = fs::read_dir(folder.path()).expect("counts").map(|file| file.expect("a file").path());
    let text: String = files.map(|file| fs::read_to_string(file).expect("text")).collect();
    let count = |what: &str| -> u64 {
        let number = text.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(' '));
        number.expect("a count").parse().expect("a number")
    };
    let (last, all) = (count("launches before the last allocation"), count("launches"));
    assert!(
        last < all / 5,
        "the last of {} allocations follows {last} of {all} launches",
        count("allocations")
    );
}
