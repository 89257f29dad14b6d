//! `image_folder export`: weights with torchvision's names and layouts.

use crate::run::open;
use anyhow::Result;
use burn::module::Module;
use burn_ddp::{process::console::print_line, run::weights::export};
use clap::Args;
use std::{path::PathBuf, process::ExitCode};

#[derive(Args)]
pub struct ExportArgs {
    /// Run folder or checkpoint
    #[arg(value_name = "RUN")]
    from: PathBuf,
    /// Output file, ending in .safetensors
    #[arg(value_name = "OUT")]
    to: PathBuf,
}

/// Exports the weights and prints the file.
///
/// # Errors
/// If the weights cannot be read, or the file exists or cannot be written.
pub fn run(ExportArgs { from, to }: &ExportArgs) -> Result<ExitCode> {
    let net = open(from)?;
    export(&net, to, "")?;
    print_line(&format!("{}: {} parameters", to.display(), net.num_params()));
    Ok(ExitCode::SUCCESS)
}
