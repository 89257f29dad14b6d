//! `char_gpt export`: weights with PyTorch's names and layouts.

use crate::run::TrainedGpt;
use anyhow::{Result, bail};
use burn::module::Module;
use burn::tensor::Device;
use burn_ddp::{process::console::print_line, run::weights::save};
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
    if to.extension().is_none_or(|extension| extension != "safetensors") {
        bail!("{}: the output file must end in .safetensors", to.display());
    }
    if to.exists() {
        bail!("{} already exists; name another file, or remove it", to.display());
    }
    let net = TrainedGpt::open(from, &Device::flex())?.net;
    save(&net, to, "")?;
    print_line(&format!("{}: {} parameters", to.display(), net.num_params()));
    Ok(ExitCode::SUCCESS)
}
