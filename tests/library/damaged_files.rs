//! Files and variables in any state: the seeds of the fuzz targets, cut and changed.

#[path = "../../fuzz/src/properties.rs"]
mod properties;

use std::{fs, path::Path};

#[test]
fn damaged_files_give_results_or_errors() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    for (name, property) in properties::ALL {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut count = 0;
        for entry in fs::read_dir(seeds.join(name)).expect("the target's seeds") {
            let seed = fs::read(entry.expect("readable").path()).expect("readable");
            property(folder.path(), &seed);
            for at in (0..seed.len()).step_by(seed.len().div_ceil(50)) {
                property(folder.path(), &seed[..at]);
                let mut changed = seed.clone();
                changed[at] ^= 0x15;
                property(folder.path(), &changed);
            }
            count += 1;
        }
        assert!(count > 0, "{name} has no seeds");
    }
}
