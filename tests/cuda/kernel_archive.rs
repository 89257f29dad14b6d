//! `burn-ddp kernels`: compiled kernels of one machine shorten the first start of another one.

use crate::{
    common::example,
    kernel_cache::{compiled, count, driver_caches},
    stand_in::{self, Machine, TINY},
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    thread,
};
use tempfile::TempDir;

/// The probe kernel, which is compiled in every start.
const PROBES: usize = 1;

fn folder() -> (TempDir, impl Fn(&str) -> String) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().to_owned();
    (folder, move |name: &str| path.join(name).to_str().expect("UTF-8").to_owned())
}

/// A machine with its own cache, driver and NVRTC.
fn machine(cache: &str, driver: u32, nvrtc: &str) -> Machine {
    let machine = Machine::new(2).with("BURN_DDP_KERNEL_CACHE", cache);
    machine.with("CUDA_STAND_IN_DRIVER", driver).with("CUDA_STAND_IN_NVRTC", nvrtc)
}

/// Trains; returns the losses and the kernels that were compiled.
fn train(machine: &Machine, counts: &str) -> (Vec<f64>, Vec<String>) {
    let machine = machine.clone().with("CUDA_STAND_IN_COUNTS", counts);
    let run = machine.trained(&format!("{TINY} --mode single --batch-size 24 --max-steps 2"));
    (run.losses(), compiled(counts.as_ref()))
}

/// A file of a machine with a driver for CUDA 12.8.
struct Exported {
    file: String,
    losses: Vec<f64>,
    compiled: usize,
}

fn exported() -> &'static Exported {
    static EXPORTED: OnceLock<Exported> = OnceLock::new();
    EXPORTED.get_or_init(|| {
        let folder = stand_in::folder().join("exported");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        let path = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
        let machine = machine(&path("cache"), 12_080, "12.8");
        let (losses, compiled) = train(&machine, &path("counts"));
        let file = path("kernels.bundle");
        let outcome = machine.run(&format!("kernels export {file}")).succeeded();
        assert!(outcome.stdout.contains("kernels for sm_61 to"), "{outcome:#?}");
        assert!(!Path::new(&path(".kernels.bundle.flat")).exists());
        Exported { file, losses, compiled: compiled.len() }
    })
}

#[test]
fn a_first_start_with_another_machines_kernels_compiles_nothing() {
    let (_folder, path) = folder();
    let Exported { file, losses, compiled: before, .. } = exported();
    assert!(*before > 20, "{before} kernels were compiled");

    // Another driver and another NVRTC have another cache, and its first start compiles as much.
    let bare = machine(&path("cache-b"), 13_000, "13.0");
    let (_, without) = train(&bare, &path("counts-b"));
    assert!(without.len() > 20, "{} kernels were compiled", without.len());

    let fresh = machine(&path("cache-c"), 13_000, "13.0");
    let imports = |machine: &Machine| machine.run(&format!("kernels import {file}")).succeeded().stdout;
    let first = imports(&fresh);
    assert!(first.contains("for sm_61 (0 were there)") && !first.contains("imported 0"), "{first}");
    assert!(
        first.contains("no tuning results, because they are for another GPU, driver or NVRTC"),
        "{first}"
    );
    let (again, with) = train(&fresh, &path("counts-c"));
    assert_eq!(with.len(), PROBES, "compiled with the file: {with:?}");
    assert_eq!(again, *losses);

    let second = imports(&fresh);
    assert!(second.starts_with("imported 0 kernels") && !second.contains("(0 were there)"), "{second}");
}

#[test]
fn an_equal_machine_does_not_tune_again() {
    let (_folder, path) = folder();
    let machine = |cache: &str| machine(&path(cache), 13_000, "13.0").with("CUDA_STAND_IN_TIMES", 1);
    let launches = |machine: &Machine, counts: &str| {
        let machine = machine.clone().with("CUDA_STAND_IN_COUNTS", path(counts));
        machine.start(&example("launch_program"), "--device cuda --mode single --train").succeeded();
        count(path(counts).as_ref(), "launches")
    };
    let first = machine("cache-a");
    let tuning = launches(&first, "counts-a");
    let file = path("kernels.bundle");
    first.run(&format!("kernels export {file}")).succeeded();
    let import = |machine: &Machine, flag: &str| {
        machine.run(&format!("kernels import {file} {flag}")).succeeded().stdout
    };
    let (equal, without) = (machine("cache-b"), machine("cache-c"));
    let text = import(&equal, "");
    assert!(text.contains(" tuning results") && !text.contains("no tuning results"), "{text}");
    assert!(import(&without, "--no-tuning").contains("no tuning results"));
    assert!(launches(&equal, "counts-b") * 2 < tuning);
    assert!(launches(&without, "counts-c") * 2 > tuning);
}

/// Every file that does not fit ends in one line, and leaves no cache.
#[test]
fn files_that_do_not_fit_are_rejected() {
    let (_folder, path) = folder();
    let good = fs::read(&exported().file).expect("a file");
    let end = good.iter().position(|byte| *byte == b'\n').expect("a header");
    let header = String::from_utf8(good[..end].to_vec()).expect("UTF-8");
    let with_header = |from: &str, to: &str| {
        let changed = header.replace(from, to);
        assert_ne!(changed, header);
        [changed.as_bytes(), &good[end..]].concat()
    };
    let mut flipped = good.clone();
    *flipped.last_mut().expect("bytes") ^= 1;
    let fresh = || machine(&path("cache-b"), 13_000, "13.0");
    let old = machine(&path("cache-b"), 12_060, "12.6");
    let volta = fresh().with("CUDA_STAND_IN_COMPUTE_CAPABILITY", 70);
    let foreign = "this is not a file of `burn-ddp kernels export`";
    let ours = env!("CARGO_PKG_VERSION");
    for (number, (bytes, machine, part)) in [
        (Vec::new(), fresh(), foreign),
        (b"SQLite format 3\0 and more".to_vec(), fresh(), foreign),
        (good[..end].to_vec(), fresh(), foreign),
        (good[end + 1..].to_vec(), fresh(), foreign),
        (with_header("burn-ddp kernels 2", "burn-ddp kernels 9"), fresh(), foreign),
        (good[..good.len() - 1].to_vec(), fresh(), "the file has "),
        (good[..=end].to_vec(), fresh(), "the file has 0 of "),
        (flipped, fresh(), "the checksum does not match"),
        (
            with_header(&format!("\"burn_ddp\":\"{ours}"), "\"burn_ddp\":\"0.0.9"),
            fresh(),
            "compiled by burn-ddp 0.0.9",
        ),
        (with_header("\"cubecl\":\"0.", "\"cubecl\":\"9."), fresh(), "compiled by CubeCL 9."),
        (good.clone(), old, "they need a driver for CUDA 12.8, and this machine's supports 12.6"),
        (good.clone(), volta, "they are for sm_61, and this machine has a GPU of sm_70"),
        (good.clone(), fresh().with("BURN_DDP_KERNEL_CACHE", "off"), "the kernel cache is off"),
    ]
    .into_iter()
    .enumerate()
    {
        let file = path(&format!("file-{number}"));
        fs::write(&file, bytes).expect("written");
        let outcome = machine.run(&format!("kernels import {file}"));
        assert_eq!(outcome.code, Some(1), "{number}: {outcome:#?}");
        let lines: Vec<&str> = outcome.stderr.lines().collect();
        assert!(lines.len() == 1 && lines[0].starts_with("error: "), "{number}: {outcome:#?}");
        assert!(lines[0].contains(part), "{number}: {part}: {outcome:#?}");
    }
    assert!(databases(Path::new(&path("cache-b"))).is_empty());
    let outcome = fresh().run(&format!("kernels import {}", path("missing")));
    assert!(outcome.code == Some(1) && outcome.stderr.contains("No such file"), "{outcome:#?}");
    let outcome = fresh().run(&format!("kernels export {}", path("empty")));
    assert!(outcome.stderr.contains("has no compiled kernels"), "{outcome:#?}");
    assert!(!Path::new(&path("empty")).exists());
}

fn databases(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path().join("default.db"));
    paths.filter(|path| path.is_file()).collect()
}

/// Two imports and a training write one cache.
#[test]
fn files_are_imported_while_a_run_trains() {
    let (_folder, path) = folder();
    let Exported { file, losses, .. } = exported();
    let fresh = machine(&path("cache-b"), 13_000, "13.0");
    let import = || fresh.run(&format!("kernels import {file}")).succeeded();
    thread::scope(|scope| {
        let imports = [scope.spawn(import), scope.spawn(import)];
        assert_eq!(train(&fresh, &path("counts-b")).0, *losses);
        for import in imports {
            import.join().expect("imported");
        }
    });
    let (_, compiled) = train(&fresh, &path("counts-c"));
    assert_eq!(compiled.len(), PROBES, "{compiled:?}");
}

/// The driver reads the variable when it is initialised.
#[test]
fn the_driver_keeps_its_kernels_in_the_cache() {
    let (_folder, path) = folder();
    let cache = path("cache");
    for (number, (flags, processes)) in
        [("--mode single", 1), ("--nproc-per-node 2", 3)].into_iter().enumerate()
    {
        let counts = path(&format!("counts-{number}"));
        let machine = Machine::new(2).with("BURN_DDP_KERNEL_CACHE", &cache);
        machine.with("CUDA_STAND_IN_COUNTS", &counts).trained(&format!("{TINY} --max-steps 1 {flags}"));
        let found = driver_caches(counts.as_ref());
        assert_eq!(found, vec![format!("{cache}/driver"); processes], "{flags}");
        assert!(Path::new(&cache).join("driver").is_dir());
    }
    let (counts, own) = (path("counts-own"), path("own"));
    let machine = Machine::new(1).with("BURN_DDP_KERNEL_CACHE", &cache).with("CUDA_CACHE_PATH", &own);
    machine.with("CUDA_STAND_IN_COUNTS", &counts).trained(&format!("{TINY} --max-steps 1 --mode single"));
    assert_eq!(driver_caches(counts.as_ref()), [own]);
}
