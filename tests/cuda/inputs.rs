//! Batches that are computed on the device equal those of the host.

use crate::{
    common::assert_close,
    stand_in::{Machine, TINY, cpu_losses},
};

const DDP: &str = "--mode ddp --nproc-per-node 2 --transport nccl --batch-size 12";
const DP: &str = "--mode dp --device-ids cuda:0,cuda:1 --batch-size 24";

/// Losses on the device, with the images on the host and in device memory.
fn both(flags: &str) -> [Vec<f64>; 2] {
    let machine = Machine::new(2);
    ["", " --data-on-device"].map(|flag| machine.losses(&format!("{TINY} {flags}{flag}")))
}

#[test]
fn images_in_device_memory_give_the_same_losses() {
    for flags in ["--mode single --batch-size 24", DDP, DP] {
        let [uploaded, resident] = both(flags);
        assert_close(flags, &resident, &uploaded, 0.0);
    }
}

/// 70 images in batches of 12 per rank: the third global batch is uneven.
#[test]
fn uneven_shards_and_shuffled_epochs_give_the_same_losses() {
    let [uploaded, resident] =
        both(&format!("{DDP} --train-limit 70 --max-steps 7 --no-shuffle=false --seed 3"));
    assert_close("uneven", &resident, &uploaded, 0.0);
}

#[test]
fn images_augmented_on_the_device_give_the_losses_of_the_cpu() {
    let flags = "--mode single --batch-size 24 --augment shift,rotate,zoom,elastic --max-steps 3";
    let cpu = cpu_losses(&format!("{TINY} {flags}"));
    let [uploaded, resident] = both(flags);
    assert_close("uploaded", &uploaded, &cpu, 1e-5);
    assert_close("resident", &resident, &uploaded, 0.0);
}

#[test]
fn a_resumed_run_does_not_need_the_flag() {
    let machine = Machine::new(2);
    let flags = format!("{TINY} --mode single --batch-size 24");
    let whole = machine.losses(&flags);
    let begun = machine.trained(&format!("{flags} --max-steps 2 --save-every 2 --data-on-device"));
    machine.train(&format!("--device cuda {flags} --resume {}", begun.path.display())).succeeded();
    assert_close("resumed", &begun.losses(), &whole, 1e-6);
}

#[test]
fn images_that_do_not_fit_are_rejected() {
    // 96 + 16 images take 88 KB.
    let machine = Machine::new(1).with("CUDA_STAND_IN_MEMORY", (300 << 20) + 40_000);
    let outcome = machine.train(&format!("--device cuda {TINY} --mode single --data-on-device"));
    outcome.failed_with(&["--data-on-device", "cuda:0", "leave out the flag"]);
}
