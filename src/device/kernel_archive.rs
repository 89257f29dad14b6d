//! Files with compiled CUDA kernels, which shorten the first start on another machine.
//!
//! A file is one line of JSON, the header, and CubeCL's flat bundle of compiled kernels and tuning results. CubeCL finds a
//! kernel by a hash of its source and the GPU's architecture, so that kernels are valid for every GPU of their
//! architecture. They are PTX, which a driver loads if it is at least as new as the NVRTC that compiled them. The
//! header's driver is the exporting machine's driver, which can load all of them. Tuning results are valid for the same
//! model of GPU, driver and NVRTC.

use super::kernel_cache;
use crate::process::atomic_file;
use anyhow::{Context, Result, bail, ensure};
use collective::cuda::{CudaVersion, Toolkit, devices};
use cubecl::bundle::{self, Bundle, BundleFormat, EmbeddedBundle, ExportOptions};
use cubecl_environment::{
    bytes::Bytes,
    environment::Namespace,
    persistence::{Access, Database, Origin},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{collections::BTreeSet, fs, path::Path};

const FORMAT: &str = "burn-ddp kernels 2";
/// CubeCL's namespaces of compiled kernels, by key and by source.
const NAMES: [&str; 2] = ["cuda", "cuda-second-line"];
/// CubeCL's namespaces of the choices among kernels, and of the GPU's measured speed, which some of them depend on.
const TUNING: [&str; 2] = ["autotune", "throughput"];
/// Longest header that is read.
const MAX_HEADER: usize = 4096;

/// Versions and checksum of a file.
#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    burn_ddp: String,
    cubecl: String,
    /// Oldest driver that is known to load the kernels.
    driver: CudaVersion,
    /// GPUs, driver and NVRTC for which the tuning results are.
    environment: String,
    /// Size of the bundle in bytes.
    bytes: usize,
    sha256: String,
}

/// Result of an import.
pub struct Imported {
    /// Architectures of this machine's GPUs, such as `sm_90`.
    pub architectures: Vec<String>,
    pub kernels: usize,
    /// Kernels that the cache had already.
    pub present: usize,
    /// Tuning results; `None` if the file's are for another machine.
    pub tuned: Option<usize>,
}

/// Writes the compiled kernels and the tuning results of this machine's cache to a file. Returns the number and the
/// architectures of the kernels.
///
/// # Errors
/// If the cache is off or has no kernels, or a file cannot be read or written.
pub fn export(file: &Path) -> Result<(usize, Vec<String>)> {
    let database = database()?;
    let name = file.file_name().with_context(|| format!("{} is not a file name", file.display()))?;
    let flat = file.with_file_name(format!(".{}.flat", name.to_string_lossy()));
    let options = ExportOptions {
        name: "burn-ddp".into(),
        namespaces: [NAMES, TUNING]
            .concat()
            .iter()
            .map(|name| namespace(name, "").trim_end_matches('/').to_owned())
            .collect(),
        format: BundleFormat::Flat,
        ..ExportOptions::default()
    };
    let written = bundle::export(&[&database], &flat, &options).map(|_| ());
    let body = written.map_err(anyhow::Error::from).and_then(|()| Ok(fs::read(&flat)?));
    let _ = fs::remove_file(&flat);
    let body = body.with_context(|| format!("cannot export to {}", file.display()))?;
    let bundle = EmbeddedBundle::open(Bytes::from_bytes_vec(body.clone()))?;
    let architectures = architectures_of(&bundle);
    ensure!(
        !architectures.is_empty(),
        "the kernel cache {} has no compiled kernels; train on a GPU first",
        database.display()
    );
    let header = Header {
        format: FORMAT.into(),
        burn_ddp: env!("CARGO_PKG_VERSION").into(),
        cubecl: cubecl_version(),
        driver: Toolkit::get()?.driver,
        environment: kernel_cache::environment()?,
        bytes: body.len(),
        sha256: hex::encode(Sha256::digest(&body)),
    };
    let mut bytes = serde_json::to_vec(&header)?;
    bytes.push(b'\n');
    bytes.extend(body);
    atomic_file::write(file, &bytes)?;
    let kernels = architectures.iter().map(|name| count(&bundle, &kernels_of(NAMES[0], name))).sum();
    Ok((kernels, architectures))
}

/// Adds the kernels of a file for this machine's GPUs to its cache. Ranks may use the cache at the same time.
///
/// With `tuning`, it adds the tuning results, too, if they are for the same GPUs, driver and NVRTC.
///
/// # Errors
/// If the file is damaged, or of other versions, or has no kernels for a GPU of this machine; if the driver is too
/// old; or if the cache is off or cannot be written.
pub fn import(file: &Path, tuning: bool) -> Result<Imported> {
    let what = || format!("kernels {}", file.display());
    let bytes = fs::read(file).with_context(what)?;
    let (header, bundle) = read(&bytes).with_context(what)?;
    let driver = Toolkit::get()?.driver;
    ensure!(
        header.driver <= driver,
        "{}: they need a driver for CUDA {}, and this machine's supports {driver}",
        what(),
        header.driver
    );
    let wanted: BTreeSet<String> = devices()?.iter().map(|gpu| format!("sm_{}", gpu.architecture)).collect();
    let there = architectures_of(&bundle);
    if let Some(missing) = wanted.iter().find(|name| !there.contains(name)) {
        bail!("{}: they are for {}, and this machine has a GPU of {missing}", what(), there.join(", "));
    }
    let database = database()?;
    let shown = database.display();
    if let Some(folder) = database.parent() {
        fs::create_dir_all(folder).with_context(|| format!("kernel cache {shown}: cannot be written"))?;
    }
    let target = Database::open_at(&database, Access::ReadWrite);
    let target =
        target.map_err(|error| anyhow::anyhow!("kernel cache {shown}: cannot be opened: {error}"))?;
    let copy = |namespace: &str| {
        let mut rows = Vec::new();
        bundle.scan(namespace, &mut |key, value| {
            rows.push((Bytes::from_bytes_vec(key.to_vec()), Bytes::from_bytes_vec(value.to_vec())));
        });
        let done = target.insert_many(namespace, &mut rows.into_iter(), Origin::Imported);
        ensure!(done.failed == 0, "kernel cache {shown}: {} entries cannot be written", done.failed);
        Ok((done.stored, done.conflict))
    };
    let mut imported =
        Imported { architectures: wanted.into_iter().collect(), kernels: 0, present: 0, tuned: None };
    for architecture in &imported.architectures {
        let (stored, present) = copy(&kernels_of(NAMES[0], architecture))?;
        copy(&kernels_of(NAMES[1], architecture))?;
        imported.kernels += stored;
        imported.present += present;
    }
    if tuning && header.environment == kernel_cache::environment()? {
        let results = TUNING.map(|name| namespace(name, ""));
        let namespaces = bundle.namespaces();
        let results = namespaces.iter().filter(|name| results.iter().any(|scope| name.starts_with(scope)));
        let stored: Result<Vec<_>> = results.map(|name| Ok(copy(name)?.0)).collect();
        imported.tuned = Some(stored?.iter().sum());
    }
    Ok(imported)
}

/// Verifies the contents of a file.
fn read(bytes: &[u8]) -> Result<(Header, EmbeddedBundle)> {
    let start = &bytes[..bytes.len().min(MAX_HEADER)];
    let length = start.iter().position(|byte| *byte == b'\n');
    let header = length.and_then(|length| serde_json::from_slice::<Header>(&start[..length]).ok());
    let header = header.filter(|header| header.format == FORMAT);
    let header = header.context("this is not a file of `burn-ddp kernels export`")?;
    for (name, theirs, ours) in [
        ("burn-ddp", &header.burn_ddp, env!("CARGO_PKG_VERSION")),
        ("CubeCL", &header.cubecl, cubecl_version().as_str()),
    ] {
        ensure!(theirs == ours, "they were compiled by {name} {theirs}, and this is {ours}");
    }
    let body = &bytes[length.unwrap_or(0) + 1..];
    ensure!(body.len() == header.bytes, "the file has {} of {} bytes", body.len(), header.bytes);
    ensure!(hex::encode(Sha256::digest(body)) == header.sha256, "the checksum does not match");
    let bundle = EmbeddedBundle::open(Bytes::from_bytes_vec(body.to_vec()))?;
    Ok((header, bundle))
}

/// The database of this machine's cache, which may be missing.
fn database() -> Result<std::path::PathBuf> {
    ensure!(
        kernel_cache::enable()?,
        "the kernel cache is off; unset {} or set it to a folder",
        kernel_cache::FOLDER
    );
    Ok(cubecl::environment::path())
}

/// CubeCL's namespace of kernels of an architecture, such as `sm_90`.
fn kernels_of(name: &str, architecture: &str) -> String {
    namespace(name, &format!("ptx_{}-cpp", architecture.replace('_', "")))
}

fn namespace(name: &str, path: &str) -> String {
    Namespace::scoped(name, path).as_str().to_owned()
}

/// Architectures for which a bundle has kernels of this version of CubeCL.
fn architectures_of(bundle: &EmbeddedBundle) -> Vec<String> {
    let (before, after) = (namespace(NAMES[0], "ptx_sm"), "-cpp");
    let mut versions: Vec<u32> = bundle
        .namespaces()
        .iter()
        .filter_map(|name| name.strip_prefix(&before)?.strip_suffix(after)?.parse().ok())
        .collect();
    versions.sort_unstable();
    versions.into_iter().map(|version| format!("sm_{version}")).collect()
}

fn count(bundle: &EmbeddedBundle, namespace: &str) -> usize {
    let mut count = 0;
    bundle.scan(namespace, &mut |_, _| count += 1);
    count
}

/// The version of CubeCL, which its namespaces contain.
fn cubecl_version() -> String {
    namespace(NAMES[0], "").split('/').nth(1).unwrap_or_default().to_owned()
}
