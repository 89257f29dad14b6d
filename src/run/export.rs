//! The command `export` of a program: trained weights for other programs.

use crate::{process::console::print_line, run::weights};
use anyhow::Result;
use burn::store::ModuleSnapshot;
use clap::Args;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Arguments of the command `export`.
#[derive(Args, Clone, Debug)]
pub struct ExportArgs {
    /// Run folder, checkpoint or weights file
    #[arg(value_name = "RUN|FILE")]
    from: PathBuf,
    /// Output file, ending in .safetensors
    #[arg(value_name = "OUT")]
    to: PathBuf,
    /// Prefix keys with `module.`, as PyTorch's wrappers do
    #[arg(long)]
    module_prefix: bool,
}

impl ExportArgs {
    /// Exports the network that `open` reads with PyTorch's key names and layouts, and prints the file.
    ///
    /// # Errors
    /// If the network cannot be read, or the output file exists or cannot be written.
    pub fn run<M: ModuleSnapshot>(&self, open: impl FnOnce(&Path) -> Result<M>) -> Result<ExitCode> {
        let model = open(&self.from)?;
        weights::export(&model, &self.to, if self.module_prefix { "module." } else { "" })?;
        let (to, tensors) = (self.to.display(), model.collect(None, None, false).len());
        print_line(&format!("{to}: {tensors} tensors, {} parameters", model.num_params()));
        Ok(ExitCode::SUCCESS)
    }
}
