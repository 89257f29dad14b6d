//! Ranks that choose different kernels keep equal replicas.

use crate::{common::example, stand_in::Machine};
use std::{collections::BTreeSet, fs};

/// Trains two ranks that measure random times; returns their replicas' digests and how often each ran which kernel.
fn trained() -> (Vec<String>, BTreeSet<String>) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let machine = Machine::new(2).with("BURN_DDP_KERNEL_CACHE", "off").with("CUDA_STAND_IN_TIMES", "random");
    let machine = machine.with("CUDA_STAND_IN_KERNELS", folder.path().join("kernels").display());
    let flags = "--device cuda --mode ddp --nproc-per-node 2 --transport nccl --train";
    let outcome = machine.start(&example("launch_program"), flags).succeeded();
    let digests = outcome.stdout.lines().filter_map(|line| line.strip_prefix("replica ")).map(String::from);
    let files = fs::read_dir(folder.path()).expect("a folder").map(|file| file.expect("a file").path());
    // Without the times, which differ.
    let counts = |text: String| -> String {
        let mut lines: Vec<_> = text.lines().filter_map(|line| line.split_once(" s ")).collect();
        lines.sort_by_key(|(_, count)| *count);
        lines.into_iter().map(|(_, count)| format!("{count}\n")).collect()
    };
    (digests.collect(), files.map(|file| counts(fs::read_to_string(file).expect("kernels"))).collect())
}

/// Number of runs in which random times must lead to different choices at least once.
const RUNS: usize = 6;

#[test]
fn ranks_with_different_kernels_agree() {
    let differ = (0..RUNS).any(|_| {
        let (digests, kernels) = trained();
        assert!(digests.len() == 2 && digests[0] == digests[1], "{digests:?}");
        kernels.len() == 2
    });
    assert!(differ, "both ranks chose the same kernels in {RUNS} runs");
}
