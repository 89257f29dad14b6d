//! Model weights in files: Burn records, PyTorch `.pt`, and safetensors with PyTorch's key names and layouts.

use crate::{
    context::Context,
    process::{atomic_file, console::print_line},
};
use anyhow::{Context as _, Result, anyhow, bail};
use burn::store::{
    ApplyError, ApplyResult, BurnToPyTorchAdapter, BurnpackStore, FloatCastAdapter, ModuleAdapter,
    ModuleSnapshot, ModuleStore, PyTorchToBurnAdapter, PytorchStore, SafetensorsStore,
    burn_pack::Tensor as PackTensor,
};
use burn::tensor::{DType, Shape};
use clap::Args;
use std::{
    cmp::Reverse,
    collections::BTreeMap,
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
/// A prefix of the keys, such as DDP's `module.` or that of a nested dictionary, is removed, and keys without it are
/// ignored. Any float type is converted to f32.
///
/// # Errors
/// If the file cannot be read or has an unknown extension.
pub fn load<M: ModuleSnapshot>(mut model: M, path: &Path) -> Result<Loaded<M>> {
    let path = find(path)?;
    let failed = |error: String| anyhow!("{}: {error}", path.display());
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let tensors = match ending {
        "safetensors" => tensors(SafetensorsStore::from_file(&path)),
        "bpk" => tensors(BurnpackStore::from_file(&path)),
        "pt" | "pth" => tensors(PytorchStore::from_file(&path)),
        other => Err(format!("unknown ending `{other}`; use .bpk, .pt, .pth or .safetensors")),
    };
    // Names in PyTorch's own files do not contain variants of enums.
    let no_variants = ending.starts_with("pt");
    let tensors = without_prefix(&model, tensors.map_err(failed)?, no_variants);
    let to_f32 = FloatCastAdapter::to(DType::F32);
    let adapter: Box<dyn ModuleAdapter> = match ending {
        "bpk" => Box::new(to_f32),
        _ => Box::new(PyTorchToBurnAdapter.chain(to_f32)),
    };
    let shapes = tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect();
    let result = model.apply(tensors, None, Some(adapter), no_variants);
    Ok(Loaded { model, loaded: result.applied.len(), mismatches: mismatches(&result, &shapes) })
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
        print_line(&format!("{to}: {tensors} tensors, {} parameters", model.num_params()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Removes the prefix with which the file has most tensors of `model`, and the tensors without it.
fn without_prefix<M: ModuleSnapshot>(
    model: &M,
    mut tensors: Vec<PackTensor>,
    no_variants: bool,
) -> Vec<PackTensor> {
    let mut prefixes = BTreeMap::<&str, usize>::new();
    for own in model.collect(None, None, no_variants) {
        // The layers of another network may have the same names.
        let size = own.shape.num_elements();
        let same = tensors.iter().filter(|tensor| tensor.shape.num_elements() == size);
        let before = same.filter_map(|tensor| tensor.name.strip_suffix(&own.name));
        before
            .filter(|p| p.is_empty() || p.ends_with('.'))
            .for_each(|p| *prefixes.entry(p).or_default() += 1);
    }
    let most = prefixes.into_iter().max_by_key(|(prefix, names)| (*names, Reverse(prefix.len())));
    let prefix = most.map_or_else(String::new, |(prefix, _)| prefix.to_owned());
    tensors.retain(|tensor| tensor.name.starts_with(&prefix));
    tensors.iter_mut().for_each(|tensor| tensor.name.replace_range(..prefix.len(), ""));
    tensors
}

/// Describes tensors that are missing, unused or incompatible. `shapes` are those of the file.
fn mismatches(result: &ApplyResult, shapes: &BTreeMap<String, Shape>) -> Vec<String> {
    let mut mismatches: Vec<String> = result.errors.iter().map(|error| mismatch(error, shapes)).collect();
    mismatches.extend(result.missing.iter().map(|(path, _)| format!("`{path}` is missing from the file")));
    // PyTorch stores `num_batches_tracked` for cumulative averages, which Burn's BatchNorm does not support.
    let extra = result.unused.iter().filter(|name| !name.ends_with("num_batches_tracked"));
    mismatches.extend(extra.map(|name| format!("`{name}` is not in the network")));
    mismatches
}

fn mismatch(error: &ApplyError, shapes: &BTreeMap<String, Shape>) -> String {
    match error {
        ApplyError::ShapeMismatch { path, expected, found } => {
            // Burn holds the transposed matrix of PyTorch's linear layers.
            let transposed = shapes.get(path).is_some_and(|shape| shape != found);
            let shown = |shape: &Shape| match &shape[..] {
                [rows, columns] if transposed => Shape::new([*columns, *rows]),
                _ => shape.clone(),
            };
            let (found, expected) = (shown(found), shown(expected));
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
