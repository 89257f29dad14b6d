//! `mnist_ddp weights export`: weights with PyTorch's names and layouts.

use crate::weights::open;
use anyhow::{Context, Result, anyhow, bail};
use burn::module::Module;
use burn::store::{BurnToPyTorchAdapter, ModuleSnapshot, SafetensorsStore};
use burn::tensor::Device;
use burn_ddp::{atomic_file, print::print_line};
use clap::Subcommand;
use std::{
    fs,
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
    if to.extension().is_none_or(|extension| extension != "safetensors") {
        bail!("{}: the file to write must end in .safetensors", to.display());
    }
    if to.exists() {
        bail!("{} is there already; name another file, or remove it", to.display());
    }
    let net = open(from, &Device::flex())?;
    let failed = || format!("cannot write {}", to.display());
    let pattern = if module_prefix { ("^", "module.") } else { ("^", "") };
    let store = SafetensorsStore::from_bytes(None).with_to_adapter(BurnToPyTorchAdapter);
    // Hugging Face's libraries require this entry before they pass tensors to PyTorch.
    let mut store = store.metadata("format", "pt").with_key_remapping(pattern.0, pattern.1);
    net.save_into(&mut store).map_err(|error| anyhow!("{}: {error}", failed()))?;
    let bytes = store.get_bytes().map_err(|error| anyhow!("{}: {error}", failed()))?;
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(failed)?;
    }
    atomic_file::write(to, &bytes).with_context(failed)?;
    let tensors = net.collect(None, None, false).len();
    print_line(&format!("{}: {tensors} tensors, {} parameters", to.display(), net.num_params()));
    Ok(())
}
