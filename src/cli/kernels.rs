//! `burn-ddp kernels`: copies compiled CUDA kernels and tuning results between machines.

use crate::{device::kernel_archive, process::console::print_line};
use anyhow::Result;
use clap::Subcommand;
use std::{path::PathBuf, process::ExitCode};

/// Copy compiled CUDA kernels and tuning results between machines
#[derive(Subcommand)]
pub enum Kernels {
    /// Write the compiled kernels and tuning results of this machine's kernel cache to a file
    Export {
        /// File to write
        file: PathBuf,
    },
    /// Add the kernels of a file to this machine's kernel cache
    ///
    /// The file must be of this version of burn-ddp, and have kernels for all GPUs of this machine. Tuning results are
    /// added if they are for the same model of GPU, driver and NVRTC. Import only files that you trust, because their
    /// kernels run on the GPU.
    Import {
        /// File of `burn-ddp kernels export`
        file: PathBuf,
        /// Do not add tuning results
        #[arg(long)]
        no_tuning: bool,
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
        Kernels::Import { file, no_tuning } => {
            let done = kernel_archive::import(file, !no_tuning)?;
            let (architectures, kernels, present) =
                (done.architectures.join(", "), done.kernels, done.present);
            let tuned = match done.tuned {
                Some(results) => format!("{results} tuning results"),
                None if *no_tuning => "no tuning results".into(),
                None => "no tuning results, because they are for another GPU, driver or NVRTC".into(),
            };
            format!("imported {kernels} kernels for {architectures} ({present} were there) and {tuned}")
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
