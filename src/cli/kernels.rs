//! `burn-ddp kernels`: copies compiled CUDA kernels between machines.

use crate::{device::kernel_archive, process::console::print_line};
use anyhow::Result;
use clap::Subcommand;
use std::{path::PathBuf, process::ExitCode};

/// Copy compiled CUDA kernels between machines
#[derive(Subcommand)]
pub enum Kernels {
    /// Write the compiled kernels of this machine's kernel cache to a file
    Export {
        /// File to write
        file: PathBuf,
    },
    /// Add the kernels of a file to this machine's kernel cache
    ///
    /// The file must be of this version of burn-ddp, and have kernels for all GPUs of this machine. Import only
    /// files that you trust, because their kernels run on the GPU.
    Import {
        /// File of `burn-ddp kernels export`
        file: PathBuf,
    },
}

/// Runs the command.
///
/// # Errors
/// Those of [`kernel_archive::export`] and [`kernel_archive::import`].
pub fn run(command: &Kernels) -> Result<ExitCode> {
    print_line(&match command {
        Kernels::Export { file } => {
            let (kernels, architectures) = kernel_archive::export(file)?;
            format!("exported {kernels} kernels for {} to {}", architectures.join(", "), file.display())
        }
        Kernels::Import { file } => {
            let done = kernel_archive::import(file)?;
            let architectures = done.architectures.join(", ");
            format!("imported {} kernels for {architectures}; {} were there", done.kernels, done.present)
        }
    });
    Ok(ExitCode::SUCCESS)
}
