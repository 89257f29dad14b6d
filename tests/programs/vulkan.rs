//! Burn's other GPU backends, for which a Vulkan driver suffices.
//!
//! `cargo test --no-default-features --features mimalloc,wgpu --test programs vulkan`, or with `vulkan` instead of
//! `wgpu`. The tests take half an hour.
//!
//! Mesa's software driver supports `wgpu`; with `vulkan` it crashes in Burn's kernels. Its Debian package
//! mesa-vulkan-drivers gives wrong sums of long rows in version 22.3 of Debian 12; 25.0 from the backports is correct.

use crate::common::{Outcome, Run, assert_close, example_command, finish, free_port, reference::Reference};
use std::{path::Path, process::Command};

const DEVICE: &str = if cfg!(feature = "vulkan") { "vulkan" } else { "wgpu" };

/// A short run, because a software driver is slow.
const SMALL: &str =
    "--dataset subset --train-limit 160 --eval-limit 20 --max-steps 8 --dropout 0 --scale-lr none
    --lr 0.01 --progress plain";

/// Limits autotuning to one measurement per kernel, because it takes minutes on a software driver.
const TUNING: &str = "[autotune]\nlevel = \"minimal\"\n
    [autotune.bench]\nmin_samples = 1\nmax_samples = 1\nshort_circuit_samples = 1\n";

/// The program, with a working folder that contains CubeCL's settings.
fn command(flags: &str) -> Command {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cubecl");
    std::fs::create_dir_all(&folder).expect("a folder");
    // Renamed into place, because another test may be reading it.
    let settings = tempfile::NamedTempFile::new_in(&folder).expect("a file");
    std::fs::write(settings.path(), TUNING).expect("settings");
    settings.persist(folder.join("cubecl.toml")).expect("settings");
    let mut command = example_command("mnist_ddp", flags);
    // Vulkan's loader prints a warning without this variable.
    command.current_dir(&folder).env("XDG_RUNTIME_DIR", folder);
    command
}

fn outcome(flags: &str) -> Outcome {
    finish(command(flags).spawn().expect("the program"))
}

fn train(flags: &str) -> (Run, String) {
    let run = Run::new();
    let outcome = outcome(&format!("--run-dir {} {flags}", run.path.display())).succeeded();
    let said = outcome.stdout + &outcome.stderr;
    (run, said)
}

/// A run with one rank on each of these devices.
fn mixed(devices: &[&str], flags: &str) -> (Run, String) {
    let (run, port, size) = (Run::new(), free_port().to_string(), devices.len().to_string());
    let flags = format!("--allow-shared-gpu --run-dir {} {flags}", run.path.display());
    let ranks: Vec<_> = devices
        .iter()
        .enumerate()
        .map(|(rank, device)| {
            let mut command = command(&format!("--device {device} {flags}"));
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", &size).env("MASTER_ADDR", "127.0.0.1");
            command.env("MASTER_PORT", &port).env("BURN_DDP_SECRET", "a secret for tests");
            command.spawn().expect("the program")
        })
        .collect();
    let said = ranks.into_iter().map(|rank| {
        let outcome = finish(rank).succeeded();
        outcome.stdout + &outcome.stderr
    });
    let said = said.collect();
    (run, said)
}

#[test]
fn available_and_missing_devices_are_listed() {
    let outcome = outcome("devices").succeeded();
    assert!(outcome.stdout.contains(&format!("{DEVICE}:0")), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("cuda       this program was built without cuda"), "{}", outcome.stdout);
}

#[test]
fn a_missing_device_is_named() {
    let absent = format!("{DEVICE}:99");
    for (device, named) in [(absent.as_str(), absent.as_str()), ("cuda", "built without cuda")] {
        outcome(&format!("--device {device} --mode single")).failed_with(&[named]);
    }
}

#[test]
fn collectives_on_the_device_are_correct() {
    let check = format!("check collectives --device {DEVICE} --ranks 2 --allow-shared-gpu");
    let outcome = outcome(&check).succeeded();
    assert!(outcome.stdout.contains("\"wrong\":[]"), "{}", outcome.stdout);
}

#[test]
fn one_rank_two_ranks_and_a_mixed_world_follow_the_cpu() {
    let (cpu, _) = train(&format!("--device cpu --mode single --batch-size 20 {SMALL}"));
    let wanted = cpu.losses();
    assert_eq!(wanted.len(), 8);
    let (one, _) = train(&format!("--device {DEVICE} --mode single --batch-size 20 {SMALL}"));
    assert_close("one rank", &one.losses(), &wanted, 5e-3);
    let two = format!("--device {DEVICE} --nproc-per-node 2 --allow-shared-gpu --batch-size 10");
    let (two, said) = train(&format!("{two} {SMALL}"));
    assert_close("two ranks", &two.losses(), &wanted, 5e-3);
    assert!(!said.contains("mixes devices"), "{said}");
    let (both, said) = mixed(&[DEVICE, "cpu"], &format!("--batch-size 10 {SMALL}"));
    assert_close("a GPU and the CPU", &both.losses(), &wanted, 5e-3);
    assert!(said.contains(&format!("mixes devices (rank 0 has {DEVICE}:0, rank 1 cpu)")), "{said}");
}

/// PyTorch's f32 and f64 results differ by 3e-7 in this trajectory.
#[test]
fn the_plain_network_follows_pytorch() {
    let reference = Reference::read("calm");
    let (wanted, batch) = (&reference.golden.loss[..20], reference.golden.global_batch);
    let flags = format!("{} --max-steps 20 --eval-limit 20 --progress plain", reference.flags());
    let (one, _) = train(&format!("--device {DEVICE} --mode single --batch-size {batch} {flags}"));
    assert_close("one rank", &one.losses(), wanted, 5e-6);
    let two = format!("--device {DEVICE} --nproc-per-node 2 --allow-shared-gpu --batch-size {}", batch / 2);
    let (two, _) = train(&format!("{two} {flags}"));
    assert_close("two ranks", &two.losses(), wanted, 5e-6);
    let (both, _) = mixed(&[DEVICE, "cpu"], &format!("--batch-size {} {flags}", batch / 2));
    assert_close("a GPU and the CPU", &both.losses(), wanted, 5e-6);
}
