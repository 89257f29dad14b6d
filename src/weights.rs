//! Initial weights: a Burn record, or a PyTorch `.pt` or a safetensors file with PyTorch's key names.

use crate::model::Net;
use anyhow::{Context, Result, bail};
use burn::store::{
    ApplyResult, BurnpackStore, KeyRemapper, ModuleSnapshot, PyTorchToBurnAdapter, PytorchStore,
    SafetensorsStore,
};
use std::path::Path;

/// Every parameter and buffer of `net` from `path`, with or without DDP's `module.` prefix. If not
/// `strict`, what does not fit is skipped, and said in the list.
///
/// # Errors
/// If the file cannot be read, or nothing in it fits, or, if `strict`, a tensor is missing, extra or of
/// another shape; all are named.
pub fn load(mut net: Net, path: &Path, strict: bool) -> Result<(Net, Vec<String>)> {
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
        "bpk" => {
            let mut store = BurnpackStore::from_file(path).allow_partial(true).validate(false);
            net.load_from(&mut store).map_err(|e| anyhow::anyhow!("{}: {e}", named()))?
        }
        "pt" | "pth" => {
            let mut store = PytorchStore::from_file(path).remap(prefix).allow_partial(true).validate(false);
            net.load_from(&mut store).map_err(|e| anyhow::anyhow!("{}: {e}", named()))?
        }
        other => bail!("{}: unknown ending `{other}`; use .bpk, .pt, .pth or .safetensors", named()),
    };
    let complaints = complaints(&result);
    if strict && !complaints.is_empty() {
        bail!("{} does not fit the network: {}; --no-strict takes what fits", named(), complaints.join("; "));
    }
    if result.applied.is_empty() {
        bail!("{}: nothing in it fits the network", named());
    }
    Ok((net, complaints))
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
