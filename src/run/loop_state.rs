//! State of a training loop that a program writes itself: modules, optimizers and values in one file.

use crate::{context::Context, process::atomic_file};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use burn::module::Module;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

/// First bytes of a file.
const MAGIC: &[u8; 8] = b"burn-ddp";

/// Modules, optimizers and values of a training loop, by name.
///
/// [`Context::save_state`] writes it to a file, and [`Context::load_state`] reads it on every rank. A part that is
/// missing in a file is an error.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::AdamConfig;
/// use burn::tensor::Device;
/// use burn_ddp::run::LoopState;
///
/// let device = Device::flex().autodiff();
/// let net: Linear = LinearConfig::new(2, 1).init(&device);
/// let optimizer = AdamConfig::new().init();
/// let state = LoopState::new().module("net", &net)?.optimizer("net", &optimizer)?.value("epoch", 3)?;
/// let epoch: usize = state.load_value("epoch")?;
/// let net = state.load_module("net", net)?;
/// assert!(state.load_optimizer("other", optimizer).is_err());
/// # let _ = (epoch, net);
/// # anyhow::Ok(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoopState {
    /// Bytes by kind and name, such as `optimizer generator`.
    parts: BTreeMap<String, Vec<u8>>,
}

/// Header of a file: kind, name and length of each part, in their order.
#[derive(Serialize, Deserialize)]
struct Header {
    parts: Vec<(String, usize)>,
    /// Checksum of all parts.
    crc32: u32,
}

impl LoopState {
    /// Creates an empty state.
    pub fn new() -> Self {
        Self::default()
    }

    fn with(mut self, kind: &str, name: &str, bytes: Result<Bytes, RecordError>) -> Result<Self> {
        let bytes = bytes.map_err(|error| anyhow!("cannot pack the {kind} `{name}`: {error}"))?;
        self.parts.insert(format!("{kind} {name}"), bytes.to_vec());
        Ok(self)
    }

    fn part(&self, kind: &str, name: &str) -> Result<Bytes> {
        let found = self.parts.get(&format!("{kind} {name}"));
        let found = found.with_context(|| {
            let names: Vec<String> = self.parts.keys().map(|part| format!("`{part}`")).collect();
            format!("the checkpoint has no {kind} `{name}`; it has {}", names.join(", "))
        })?;
        Ok(Bytes::from_bytes_vec(found.clone()))
    }

    /// Adds a module.
    ///
    /// # Errors
    /// If it cannot be serialised.
    pub fn module<M: Module>(self, name: &str, module: &M) -> Result<Self> {
        // Applies the last update of BatchNorm's running statistics.
        let _ = module.valid();
        self.with("module", name, module.clone().into_record().into_bytes())
    }

    /// Adds the state of an optimizer.
    ///
    /// # Errors
    /// If it cannot be serialised.
    pub fn optimizer(self, name: &str, optimizer: &ModuleOptimizer) -> Result<Self> {
        self.optimizer_record(name, optimizer.to_record())
    }

    /// Adds the state of an optimizer as a record, such as that of
    /// [`ParallelModule::consolidate`](crate::ParallelModule::consolidate).
    ///
    /// # Errors
    /// If it cannot be serialised.
    pub fn optimizer_record(self, name: &str, record: OptimizerRecord) -> Result<Self> {
        self.with("optimizer", name, record.into_bytes())
    }

    /// Adds a value, such as the number of finished epochs.
    ///
    /// # Errors
    /// If it cannot be serialised.
    pub fn value(self, name: &str, value: impl Serialize) -> Result<Self> {
        let bytes = serde_json::to_vec(&value).with_context(|| format!("cannot pack the value `{name}`"))?;
        self.with("value", name, Ok(Bytes::from_bytes_vec(bytes)))
    }

    /// Loads a module, with the identities of its parameters, which optimizers need.
    ///
    /// # Errors
    /// If there is no such module, or it does not fit.
    pub fn load_module<M: Module>(&self, name: &str, module: M) -> Result<M> {
        let record = ModuleRecord::from_bytes(self.part("module", name)?);
        let loaded = record.and_then(|record| module.try_load_record(record));
        loaded.map_err(|error| anyhow!("the checkpoint's module `{name}` does not fit: {error}"))
    }

    /// Loads the state of an optimizer.
    ///
    /// # Errors
    /// If there is no such optimizer, or its state does not fit.
    pub fn load_optimizer(&self, name: &str, optimizer: ModuleOptimizer) -> Result<ModuleOptimizer> {
        let record = OptimizerRecord::from_bytes(self.part("optimizer", name)?);
        let record =
            record.map_err(|error| anyhow!("the checkpoint's optimizer `{name}` is damaged: {error}"))?;
        let tensors = record.len();
        // Burn creates it on the default device first, and panics if that device is missing.
        let load = AssertUnwindSafe(|| optimizer.load_record(record));
        let optimizer = catch_unwind(load).map_err(|_| {
            anyhow!(
                "Burn could not load the optimizer `{name}` on its default device; name another with BURN_DEVICE"
            )
        })?;
        // Burn leaves out the state of another kind of optimizer.
        ensure!(
            optimizer.to_record().len() == tensors,
            "the checkpoint's optimizer `{name}` is of another kind than the program's"
        );
        Ok(optimizer)
    }

    /// Returns a value.
    ///
    /// # Errors
    /// If there is no such value, or it has another type.
    pub fn load_value<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let value = serde_json::from_slice(&self.part("value", name)?);
        value.with_context(|| format!("the checkpoint's value `{name}` has another type"))
    }

    fn to_bytes(&self) -> Result<Vec<u8>> {
        let lengths = self.parts.iter().map(|(name, bytes)| (name.clone(), bytes.len()));
        let header = Header { parts: lengths.collect(), crc32: self.crc32() };
        let header = serde_json::to_vec(&header)?;
        let mut file = MAGIC.to_vec();
        file.extend((header.len() as u64).to_le_bytes());
        file.extend(header);
        self.parts.values().for_each(|bytes| file.extend(bytes));
        Ok(file)
    }

    fn from_bytes(file: &[u8]) -> Result<Self> {
        let rest = file.strip_prefix(MAGIC).context("this is not a checkpoint of a training loop")?;
        let truncated = || anyhow!("the file is truncated");
        let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(truncated)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (header, mut rest) = rest.split_at_checked(length).ok_or_else(truncated)?;
        let header: Header = serde_json::from_slice(header).context("the header is damaged")?;
        let mut state = Self::new();
        for (name, length) in header.parts {
            let (part, others) = rest.split_at_checked(length).ok_or_else(truncated)?;
            state.parts.insert(name, part.to_vec());
            rest = others;
        }
        if state.crc32() != header.crc32 {
            bail!("the checksum does not match");
        }
        Ok(state)
    }

    fn crc32(&self) -> u32 {
        let mut hash = crc32fast::Hasher::new();
        self.parts.values().for_each(|bytes| hash.update(bytes));
        hash.finalize()
    }
}

impl Context {
    /// Writes the state that `make` returns on rank 0 to the file `path`; the other ranks wait.
    ///
    /// The file is complete, or unchanged. It is a collective: every rank must call it.
    ///
    /// # Errors
    /// If `make` fails, or the file cannot be written. The error is the same on every rank.
    pub fn save_state(&self, path: impl AsRef<Path>, make: impl FnOnce() -> Result<LoopState>) -> Result<()> {
        let path = path.as_ref();
        let write = || {
            let bytes = make()?.to_bytes()?;
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
            }
            atomic_file::write(path, &bytes)
        };
        Ok(self.group().run_on(0, write)?)
    }

    /// Reads the file of [`save_state`](Self::save_state) on rank 0 for all ranks; `None` if there is no file.
    ///
    /// It is a collective: every rank must call it.
    ///
    /// # Errors
    /// If the file is damaged or cannot be read. The error is the same on every rank.
    pub fn load_state(&self, path: impl AsRef<Path>) -> Result<Option<LoopState>> {
        let path = path.as_ref();
        let mut file = Vec::new();
        let read = || -> Result<Option<usize>> {
            let Some(bytes) = atomic_file::read(path)? else { return Ok(None) };
            LoopState::from_bytes(&bytes).with_context(|| format!("{} is damaged", path.display()))?;
            file = bytes;
            Ok(Some(file.len()))
        };
        let Some(length) = self.group().run_on(0, read)? else { return Ok(None) };
        file.resize(length, 0);
        self.group().broadcast(&mut file, 0)?;
        LoopState::from_bytes(&file).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_are_errors() -> Result<()> {
        let state = LoopState::new().value("epoch", 3)?.value("name", "net")?;
        let file = state.to_bytes()?;
        assert_eq!(LoopState::from_bytes(&file)?, state);
        for length in 0..file.len() {
            assert!(LoopState::from_bytes(&file[..length]).is_err(), "{length} of {}", file.len());
        }
        let error = |file: &[u8]| LoopState::from_bytes(file).expect_err("an error").to_string();
        let mut changed = file.clone();
        *changed.last_mut().expect("bytes") ^= 1;
        assert!(error(&changed).contains("checksum"));
        let mut long = file;
        long[8..16].fill(0xff);
        assert!(error(&long).contains("truncated"));
        Ok(())
    }
}
