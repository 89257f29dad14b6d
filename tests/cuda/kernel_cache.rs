//! Compiled kernels are cached between runs.

use crate::{
    common::Run,
    stand_in::{Machine, SMALL},
};
use std::fs;

/// A count of the stand-ins, summed over all processes of a run.
fn counted(counts: &std::path::Path, name: &str) -> usize {
    let folder = counts.parent().expect("a folder");
    let files = fs::read_dir(folder).expect("counts").flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.to_string_lossy().starts_with(&*counts.to_string_lossy()));
    let texts = files.map(|path| fs::read_to_string(path).expect("counts"));
    texts
        .flat_map(|text| text.lines().map(String::from).collect::<Vec<_>>())
        .filter_map(|line| line.strip_prefix(name)?.trim().parse::<usize>().ok())
        .sum()
}

/// Two ranks write the cache concurrently.
#[test]
fn a_second_start_compiles_nothing() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let machine = Machine::new(2).with("BURN_DDP_KERNEL_CACHE", path("cache"));
    let start = |number: usize| -> (Run, usize) {
        let counts = path(&format!("counts-{number}"));
        let machine = machine.clone().with("CUDA_STAND_IN_COUNTS", &counts);
        let run = machine.trained(&format!("{SMALL} --nproc-per-node 2 --batch-size 12"));
        (run, counted(counts.as_ref(), "programs"))
    };
    let (first, second) = (start(1), start(2));
    assert!(first.1 > 20, "{} kernels were compiled", first.1);
    // Each rank compiles the probe kernel at every start.
    assert_eq!(second.1, 2, "kernels compiled in the second start");
    assert_eq!(first.0.losses(), second.0.losses());

    let doctor = machine.run("doctor");
    let line = doctor.stdout.lines().find(|line| line.contains("kernel cache")).expect("a line");
    assert!(line.contains(&path("cache")) && line.contains("iB in") && !line.contains(" 0 KiB"), "{line}");
    machine.run("doctor --clear-kernel-cache").succeeded();
    assert!(!folder.path().join("cache").exists());
}
