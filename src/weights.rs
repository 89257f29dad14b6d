//! Initial weights from a PyTorch `.pt` or a safetensors file with PyTorch's key names.

use crate::model::Net;
use anyhow::{Context, Result, bail};
use burn::store::{
    ApplyResult, KeyRemapper, ModuleSnapshot, PyTorchToBurnAdapter, PytorchStore, SafetensorsStore,
};
use std::path::Path;

/// Every parameter and buffer of `net` from `path`, with or without DDP's `module.` prefix.
///
/// # Errors
/// If the file cannot be read, or a tensor is missing, extra or of another shape; all are named.
pub fn load(mut net: Net, path: &Path) -> Result<Net> {
    let named = || format!("--init-from {}", path.display());
    if !path.is_file() {
        bail!("{}: no such file", named());
    }
    let prefix = KeyRemapper::new().add_pattern(r"^module\.", "").with_context(named)?;
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let result = match extension {
        "safetensors" => {
            let store = SafetensorsStore::from_file(path).with_from_adapter(PyTorchToBurnAdapter);
            let mut store = store.remap(prefix).allow_partial(true).validate(false);
            net.load_from(&mut store).map_err(|e| anyhow::anyhow!("{}: {e}", named()))?
        }
        "pt" | "pth" => {
            let mut store = PytorchStore::from_file(path).remap(prefix).allow_partial(true).validate(false);
            net.load_from(&mut store).map_err(|e| anyhow::anyhow!("{}: {e}", named()))?
        }
        other => bail!("{}: unknown ending `{other}`; use .pt, .pth or .safetensors", named()),
    };
    let complaints = complaints(&result);
    if !complaints.is_empty() {
        bail!("{} does not fit the network: {}", named(), complaints.join("; "));
    }
    Ok(net)
}

/// What keeps the file's tensors and the network's from being one to one.
fn complaints(result: &ApplyResult) -> Vec<String> {
    let mut complaints: Vec<String> = result.errors.iter().map(ToString::to_string).collect();
    complaints.extend(result.missing.iter().map(|(path, _)| format!("`{path}` is missing from the file")));
    // PyTorch counts BatchNorm's batches for a mode Burn does not have.
    let extra = result.unused.iter().filter(|name| !name.ends_with("num_batches_tracked"));
    complaints
        .extend(extra.map(|name| format!("`{name}` is not in the network (is --batch-norm set as it was?)")));
    complaints
}
