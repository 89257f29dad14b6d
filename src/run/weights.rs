//! Model weights in files: Burn records, PyTorch `.pt`, and safetensors with PyTorch's key names and layouts.

use crate::{
    context::Context,
    process::{atomic_file, console::print_line},
};
use anyhow::{Context as _, Result, anyhow, bail};
use burn::store::{
    ApplyError, ApplyResult, BurnToPyTorchAdapter, BurnpackStore, FloatCastAdapter, KeyRemapper,
    ModuleAdapter, ModuleSnapshot, ModuleStore, PyTorchToBurnAdapter, PytorchStore, SafetensorsStore,
    burn_pack::Tensor as PackTensor, pytorch_reader::PytorchReader,
};
use burn::tensor::DType;
use clap::Args;
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// A module with weights loaded from a file.
pub struct Loaded<M> {
    pub model: M,
    /// Number of tensors that were loaded.
    pub loaded: usize,
    /// Tensors that are missing, unused or incompatible, with reasons.
    pub mismatches: Vec<String>,
}

/// Resolves `path` to a weights file: itself, or the model of a run or checkpoint folder.
///
/// # Errors
/// If there is no such file or the folder contains no model.
pub fn find(path: &Path) -> Result<PathBuf> {
    if path.is_dir() {
        // An unfinished run has a model only in its checkpoints, which may also have the average of its weights.
        let places = ["ema.bpk", "model.bpk", "checkpoints/last/ema.bpk", "checkpoints/last/model.bpk"]
            .map(|place| path.join(place));
        let found = places.into_iter().find(|place| place.is_file());
        return found.ok_or_else(|| anyhow!("{}: there is no model in this folder", path.display()));
    }
    if !path.is_file() {
        bail!("{}: no such file", path.display());
    }
    Ok(path.into())
}

/// Loads the tensors of a run or file that `model` also has.
///
/// Keys may have DDP's `module.` prefix. Any float type is converted to f32.
///
/// # Errors
/// If the file cannot be read or has an unknown extension.
pub fn load<M: ModuleSnapshot>(mut model: M, path: &Path) -> Result<Loaded<M>> {
    let path = find(path)?;
    let failed = |error: String| anyhow!("{}: {error}", path.display());
    let prefix = KeyRemapper::new().add_pattern(r"^module\.", "").map_err(|e| failed(e.to_string()))?;
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let tensors = match ending {
        "safetensors" => tensors(SafetensorsStore::from_file(&path).remap(prefix)),
        "bpk" => tensors(BurnpackStore::from_file(&path).remap(prefix)),
        "pt" | "pth" => {
            let (store, key) = (PytorchStore::from_file(&path).remap(prefix), state_dict_key(&model, &path));
            tensors(key.into_iter().fold(store, PytorchStore::with_top_level_key))
        }
        other => Err(format!("unknown ending `{other}`; use .bpk, .pt, .pth or .safetensors")),
    };
    let to_f32 = FloatCastAdapter::to(DType::F32);
    let adapter: Box<dyn ModuleAdapter> = match ending {
        "bpk" => Box::new(to_f32),
        _ => Box::new(PyTorchToBurnAdapter.chain(to_f32)),
    };
    // Names in PyTorch's own files do not contain variants of enums.
    let result = model.apply(tensors.map_err(failed)?, None, Some(adapter), ending.starts_with("pt"));
    Ok(Loaded { model, loaded: result.applied.len(), mismatches: mismatches(&result) })
}

/// The tensors of a file, whose data is read later.
fn tensors<S: ModuleStore>(mut store: S) -> Result<Vec<PackTensor>, String> {
    store.get_all_tensors().map(|all| all.values().cloned().collect()).map_err(|error| error.to_string())
}

/// Loads a run or file that has exactly the tensors of `model`.
///
/// # Errors
/// As for [`load`], or if a tensor is missing, unused or incompatible.
pub fn open<M: ModuleSnapshot>(model: M, path: &Path) -> Result<M> {
    let Loaded { model, mismatches, .. } = load(model, path)?;
    if !mismatches.is_empty() {
        bail!("{} does not fit the network: {}", path.display(), mismatches.join("; "));
    }
    Ok(model)
}

impl Context {
    /// Writes a module's weights on rank 0 as [`save`] does; other ranks do nothing.
    ///
    /// # Errors
    /// As for [`save`].
    pub fn save<M: ModuleSnapshot>(&self, module: &M, path: impl AsRef<Path>) -> Result<()> {
        if self.is_main() { save(module, path.as_ref(), "") } else { Ok(()) }
    }
}

/// Writes a module's weights atomically to a `.safetensors` or `.bpk` file.
///
/// safetensors files have PyTorch's key names and layouts, with `prefix` before every key.
///
/// # Errors
/// If the file has another extension or cannot be written.
pub fn save<M: ModuleSnapshot>(module: &M, path: &Path, prefix: &str) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let bytes = match path.extension().and_then(|ending| ending.to_str()) {
        Some("safetensors") => {
            let store = SafetensorsStore::from_bytes(None).with_to_adapter(BurnToPyTorchAdapter);
            // Hugging Face's libraries require this entry for PyTorch tensors.
            let mut store = store.metadata("format", "pt").with_key_remapping("^", prefix);
            module.save_into(&mut store).map_err(|error| anyhow!("{}: {error}", failed()))?;
            store.get_bytes().map_err(|error| anyhow!("{}: {error}", failed()))?
        }
        Some("bpk") => {
            let record = module.clone().into_record().into_bytes();
            record.map_err(|error| anyhow!("{}: {error}", failed()))?.to_vec()
        }
        _ => bail!("{}: the output file must end in .safetensors or .bpk", path.display()),
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(failed)?;
    }
    atomic_file::write(path, &bytes)
}

/// Verifies that `path` can be written as a new file of exported weights.
///
/// # Errors
/// If the file exists already, has another extension than `.safetensors`, or cannot be created.
pub fn check_export(path: &Path) -> Result<()> {
    if path.extension().is_none_or(|extension| extension != "safetensors") {
        bail!("{}: the output file must end in .safetensors", path.display());
    }
    if path.exists() {
        bail!("{} already exists; name another file, or remove it", path.display());
    }
    let failed = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(failed)?;
    }
    File::create_new(path).and_then(|_| fs::remove_file(path)).with_context(failed)
}

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
        check_export(&self.to)?;
        save(&model, &self.to, if self.module_prefix { "module." } else { "" })?;
        let (to, tensors) = (self.to.display(), model.collect(None, None, false).len());
        print_line(&format!("{to}: {tensors} tensors, {} parameters", model.num_params()));
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the key of the state dict in a PyTorch checkpoint, if it is nested.
fn state_dict_key<M: ModuleSnapshot>(model: &M, path: &Path) -> Option<String> {
    let first = model.collect(None, None, true).into_iter().next()?.name;
    // Read errors are reported when the file is loaded.
    let keys = PytorchReader::new(path).ok()?.keys();
    // The shortest, because `layer1.0.conv1.weight` also ends in `conv1.weight`.
    let before = keys.iter().filter_map(|key| key.strip_suffix(&first)).min_by_key(|before| before.len())?;
    let key = before.trim_end_matches("module.").trim_end_matches('.');
    (!key.is_empty()).then(|| key.to_owned())
}

/// Describes tensors that are missing, unused or incompatible.
fn mismatches(result: &ApplyResult) -> Vec<String> {
    let mut mismatches: Vec<String> = result.errors.iter().map(mismatch).collect();
    mismatches.extend(result.missing.iter().map(|(path, _)| format!("`{path}` is missing from the file")));
    // PyTorch stores `num_batches_tracked` for cumulative averages, which Burn's BatchNorm does not support.
    let extra = result.unused.iter().filter(|name| !name.ends_with("num_batches_tracked"));
    mismatches.extend(extra.map(|name| format!("`{name}` is not in the network")));
    mismatches
}

fn mismatch(error: &ApplyError) -> String {
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
