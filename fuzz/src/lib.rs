//! Common code of the fuzz targets.

pub mod properties;

pub use libfuzzer_sys;

use std::{env, fs, path::PathBuf, process};

/// Defines a target that checks the property of this name.
#[macro_export]
macro_rules! target {
    ($property:ident) => {
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            $crate::properties::$property(&$crate::folder(), bytes)
        });
    };
}

/// The folder of this process.
pub fn folder() -> PathBuf {
    let folder = env::temp_dir().join(format!("burn-ddp-fuzz-{}", process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    folder
}
