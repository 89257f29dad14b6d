//! `mnist_ddp weights export`: weights with PyTorch's names and layouts.

use crate::weights::open;
use anyhow::Result;
use burn::module::Module;
use burn::store::ModuleSnapshot;
use burn::tensor::Device;
use burn_ddp::{process::console::print_line, run::weights};
use clap::Subcommand;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(Subcommand)]
pub enum WeightsCommand {
    /// Export weights as safetensors with PyTorch's key names and layouts
    Export {
        /// Run folder, checkpoint or weights file
        #[arg(value_name = "RUN|FILE")]
        from: PathBuf,
        /// Output file, ending in .safetensors
        #[arg(value_name = "OUT")]
        to: PathBuf,
        /// Prefix keys with `module.`, as PyTorch's wrappers do
        #[arg(long)]
        module_prefix: bool,
    },
}

/// Exports the weights and prints the file.
///
/// # Errors
/// If the weights cannot be read, or the file exists or cannot be written.
pub fn run(command: &WeightsCommand) -> Result<ExitCode> {
    match command {
        WeightsCommand::Export { from, to, module_prefix } => export(from, to, *module_prefix)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn export(from: &Path, to: &Path, module_prefix: bool) -> Result<()> {
    let net = open(from, &Device::flex())?;
    weights::export(&net, to, if module_prefix { "module." } else { "" })?;
    let tensors = net.collect(None, None, false).len();
    print_line(&format!("{}: {tensors} tensors, {} parameters", to.display(), net.num_params()));
    Ok(())
}
