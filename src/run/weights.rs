//! Weights of a module in files: Burn records, PyTorch's `.pt`, and safetensors with PyTorch's key names and
//! layouts.

use crate::{context::Context, process::atomic_file};
use anyhow::{Context as _, Result, anyhow, bail};
use burn::module::{ModuleMapper, Param};
use burn::store::{
    ApplyError, ApplyResult, BurnToPyTorchAdapter, BurnpackStore, KeyRemapper, ModuleSnapshot,
    PyTorchToBurnAdapter, PytorchStore, SafetensorsStore, pytorch_reader::PytorchReader,
};
use burn::tensor::{DType, FloatDType, Tensor};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A module with what a file had for it.
pub struct Loaded<M> {
    pub model: M,
    /// How many of its tensors the file had.
    pub fitting: usize,
    /// What keeps the file's tensors and the module's from being one to one: what was left out, and why.
    pub complaints: Vec<String>,
}

/// The file with the weights: `path` itself, or the model of the run or checkpoint in it.
///
/// # Errors
/// If there is none.
pub fn find(path: &Path) -> Result<PathBuf> {
    if path.is_dir() {
        // A run that is not over has none but its checkpoints'.
        let places = ["model.bpk", "checkpoints/last/model.bpk"].map(|place| path.join(place));
        let found = places.into_iter().find(|place| place.is_file());
        return found.ok_or_else(|| anyhow!("{}: there is no model in this folder", path.display()));
    }
    if !path.is_file() {
        bail!("{}: no such file", path.display());
    }
    Ok(path.into())
}

/// The tensors of a run or file that `model` has, too; with or without DDP's `module.` prefix, in any
/// float type.
///
/// # Errors
/// If the file cannot be read.
pub fn load<M: ModuleSnapshot>(mut model: M, path: &Path) -> Result<Loaded<M>> {
    let path = find(path)?;
    let failed = |error: &dyn std::fmt::Display| anyhow!("{}: {error}", path.display());
    let prefix = KeyRemapper::new().add_pattern(r"^module\.", "").map_err(|e| failed(&e))?;
    let result = match path.extension().and_then(|e| e.to_str()).unwrap_or_default() {
        "safetensors" => {
            let store = SafetensorsStore::from_file(&path).with_from_adapter(PyTorchToBurnAdapter);
            let mut store = store.remap(prefix).allow_partial(true).validate(false);
            model.load_from(&mut store).map_err(|e| failed(&e))?
        }
        "bpk" => {
            let mut store = BurnpackStore::from_file(&path).remap(prefix).allow_partial(true).validate(false);
            model.load_from(&mut store).map_err(|e| failed(&e))?
        }
        "pt" | "pth" => {
            let mut store = PytorchStore::from_file(&path).remap(prefix).allow_partial(true).validate(false);
            if let Some(key) = wrapper(&model, &path) {
                store = store.with_top_level_key(key);
            }
            model.load_from(&mut store).map_err(|e| failed(&e))?
        }
        other => bail!(failed(&format!("unknown ending `{other}`; use .bpk, .pt, .pth or .safetensors"))),
    };
    Ok(Loaded {
        model: model.map(&mut ToF32),
        fitting: result.applied.len(),
        complaints: complaints(&result),
    })
}

impl Context {
    /// Writes a module's weights on rank 0, as [`save`] does; other ranks do nothing.
    ///
    /// # Errors
    /// As [`save`].
    pub fn save<M: ModuleSnapshot>(&self, module: &M, path: impl AsRef<Path>) -> Result<()> {
        if self.is_main() { save(module, path.as_ref(), "") } else { Ok(()) }
    }
}

/// Writes a module's weights atomically: as safetensors with PyTorch's key names and layouts, or as Burn record
/// (`.bpk`). `prefix` is put before every key of a safetensors file.
///
/// # Errors
/// If the file has another ending or cannot be written.
pub fn save<M: ModuleSnapshot>(module: &M, path: &Path, prefix: &str) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let bytes = match path.extension().and_then(|ending| ending.to_str()) {
        Some("safetensors") => {
            let store = SafetensorsStore::from_bytes(None).with_to_adapter(BurnToPyTorchAdapter);
            // Hugging Face's libraries require this entry before they hand tensors to PyTorch.
            let mut store = store.metadata("format", "pt").with_key_remapping("^", prefix);
            module.save_into(&mut store).map_err(|error| anyhow!("{}: {error}", failed()))?;
            store.get_bytes().map_err(|error| anyhow!("{}: {error}", failed()))?
        }
        Some("bpk") => module.clone().into_record().into_bytes().map_err(|e| anyhow!("{}: {e}", failed()))?,
        _ => bail!("{}: the file to write must end in .safetensors or .bpk", path.display()),
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(failed)?;
    }
    atomic_file::write(path, &bytes).with_context(failed)
}

/// Under which key a PyTorch checkpoint keeps the weights, if it keeps other things, too.
fn wrapper<M: ModuleSnapshot>(model: &M, path: &Path) -> Option<String> {
    let first = model.collect(None, None, true).into_iter().next()?.name;
    // A file that cannot be read is reported when it is loaded.
    let keys = PytorchReader::new(path).ok()?.keys();
    let before = keys.iter().find_map(|key| key.strip_suffix(&first))?;
    let key = before.trim_end_matches("module.").trim_end_matches('.');
    (!key.is_empty()).then(|| key.to_owned())
}

/// What keeps the file's tensors and the module's from being one to one.
fn complaints(result: &ApplyResult) -> Vec<String> {
    let mut complaints: Vec<String> = result.errors.iter().map(complaint).collect();
    complaints.extend(result.missing.iter().map(|(path, _)| format!("`{path}` is missing from the file")));
    // PyTorch counts BatchNorm's batches for a mode Burn does not have.
    let extra = result.unused.iter().filter(|name| !name.ends_with("num_batches_tracked"));
    complaints
        .extend(extra.map(|name| format!("`{name}` is not in the network (is --batch-norm set as it was?)")));
    complaints
}

fn complaint(error: &ApplyError) -> String {
    match error {
        ApplyError::ShapeMismatch { path, expected, found } => {
            format!("`{path}` has the shape {found} in the file, and {expected} in the network")
        }
        ApplyError::DTypeMismatch { path, expected, found } => {
            format!("`{path}` is of {found:?} in the file, and {expected:?} in the network")
        }
        ApplyError::AdapterError { path, message } | ApplyError::LoadError { path, message } => {
            format!("`{path}` cannot be read: {message}")
        }
    }
}

/// A parameter keeps the type that its file had; ours are f32.
struct ToF32;

impl ModuleMapper for ToF32 {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if param.val().dtype() == DType::F32 {
            return param;
        }
        param.map(|old| {
            let trained = old.is_require_grad();
            // Only what is cut off from the cast can be trained.
            old.cast(FloatDType::F32).detach().set_require_grad(trained)
        })
    }
}
