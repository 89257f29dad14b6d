//! Folder and size of the cache of compiled CUDA kernels.

use super::Finding;
use crate::{
    device::{
        binary_size,
        kernel_cache::{self, FOLDER},
    },
    process::console::print_line,
};
use anyhow::Result;

const NAME: &str = "kernel cache";

pub(super) fn check() -> Finding {
    let Some(folder) = kernel_cache::folder() else {
        let advice = format!("every run compiles its CUDA kernels; unset {FOLDER} to keep them");
        return Finding::note(NAME, "off", advice);
    };
    match kernel_cache::size(&folder) {
        Ok(bytes) => Finding::ok(NAME, format!("{} in {}", binary_size(bytes), folder.display())),
        Err(error) => {
            Finding::note(NAME, format!("{error:#}"), format!("delete it, or set {FOLDER} to another folder"))
        }
    }
}

/// Deletes the kernel cache.
pub(super) fn clear() -> Result<()> {
    let Some(folder) = kernel_cache::folder() else {
        print_line("the kernel cache is off");
        return Ok(());
    };
    let bytes = kernel_cache::size(&folder)?;
    kernel_cache::clear(&folder)?;
    print_line(&format!("deleted {} in {}", binary_size(bytes), folder.display()));
    Ok(())
}
