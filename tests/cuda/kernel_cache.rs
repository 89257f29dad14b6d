//! Compiled kernels are cached between runs.

use crate::{
    common::Run,
    stand_in::{Machine, TINY},
};
use cubecl_environment::persistence::{Access, CacheOption, Database, Store, StoreOptions, TursoStorage};
use std::{fs, path::Path};

/// The kernels that were compiled, over all processes of a run.
pub fn compiled(counts: &Path) -> Vec<String> {
    let names = lines(counts).into_iter();
    names.filter_map(|line| Some(line.strip_prefix("kernel:")?.split_once(' ')?.0.to_owned())).collect()
}

/// How often `what` was counted, in all processes that did.
pub fn count(counts: &Path, what: &str) -> u64 {
    let of = |line: String| line.strip_prefix(what)?.strip_prefix(' ')?.parse::<u64>().ok();
    lines(counts).into_iter().filter_map(of).reduce(|one, other| one + other).expect("a count")
}

/// The driver's folder for compiled kernels, in each process.
pub fn driver_caches(counts: &Path) -> Vec<String> {
    let lines = lines(counts).into_iter();
    lines.filter_map(|line| Some(line.strip_prefix("cache:")?.rsplit_once(' ')?.0.to_owned())).collect()
}

/// The lines of the counts of all processes.
pub fn lines(counts: &Path) -> Vec<String> {
    let folder = counts.parent().expect("a folder");
    let files = fs::read_dir(folder).expect("counts").flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.to_string_lossy().starts_with(&*counts.to_string_lossy()));
    let texts = files.map(|path| fs::read_to_string(path).expect("counts"));
    texts.flat_map(|text| text.lines().map(String::from).collect::<Vec<_>>()).collect()
}

/// Two ranks write the cache concurrently.
#[test]
fn a_second_start_compiles_nothing() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let machine = Machine::new(2).with("BURN_DDP_KERNEL_CACHE", path("cache"));
    let start = |number: usize| -> (Run, Vec<String>) {
        let counts = path(&format!("counts-{number}"));
        let machine = machine.clone().with("CUDA_STAND_IN_COUNTS", &counts);
        let run = machine.trained(&format!("{TINY} --nproc-per-node 2 --batch-size 12"));
        (run, compiled(counts.as_ref()))
    };
    let (first, all) = start(1);
    assert!(all.len() > 20, "{} kernels were compiled", all.len());
    let (second, mut again) = start(2);
    assert!(again.len() <= 2 + all.len() / 10, "compiled in the second start: {again:?}");
    for number in 3..=5 {
        // Each rank compiles the probe kernel in every start.
        if again.len() > 2 {
            println!("compiled in start {}: {again:?}", number - 1);
            again = start(number).1;
        }
    }
    assert_eq!(again.len(), 2, "compiled in the last start: {again:?}");
    assert_eq!(first.losses(), second.losses());

    let doctor = machine.run("doctor");
    let line = doctor.stdout.lines().find(|line| line.contains("kernel cache")).expect("a line");
    assert!(line.contains(&path("cache")) && line.contains("iB in") && !line.contains(" 0 KiB"), "{line}");
    machine.run("doctor --clear-kernel-cache").succeeded();
    assert!(!folder.path().join("cache").exists());
}

/// If the second rank removed what the first one stored, CubeCL would panic.
#[test]
fn two_ranks_take_over_a_kernel_of_an_earlier_build() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("default.db");
    let open = || {
        let database = Database::open_at(&file, Access::ReadWrite).expect("opened");
        let storage = Box::new(TursoStorage::new(database, "kernels".into()));
        let options = StoreOptions::new().storage_with(storage, "kernels").cache(CacheOption::Lazy);
        Store::<String, String>::new(options)
    };
    let (old, new) = ("old build".to_string(), "new build".to_string());
    open().insert(old.clone(), "kernel".into()).expect("stored");
    let (mut first, mut second) = (open(), open());
    let kernel = first.purge_key(&old).expect("the kernel");
    first.insert(new.clone(), kernel).expect("stored");
    assert_eq!(open().remove(&old), None);
    assert_eq!(second.purge_key(&new).as_deref(), Some("kernel"));
    assert_eq!(first.remove(&new).as_deref(), Some("kernel"));
}
