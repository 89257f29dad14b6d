//! Weights of the MNIST network, read from a run or file.

use crate::model::{Net, NetConfig, Network};
use anyhow::{Result, bail};
use burn::tensor::Device;
use burn_ddp::run::weights::load;
use clap::ValueEnum;
use std::path::Path;

/// Loads the network of a run or file onto `device`.
///
/// It is the network of the file, with BatchNorm if the file has it.
///
/// # Errors
/// If the file cannot be read, or does not contain exactly such a network.
pub fn open(path: &Path, device: &Device) -> Result<Net> {
    let candidates = Network::value_variants().iter().flat_map(|network| {
        [false, true].map(|batch_norm| NetConfig { network: *network, batch_norm, ..NetConfig::default() })
    });
    let mut mismatches = Vec::new();
    for config in candidates {
        let loaded = load(config.init(device), path)?;
        if loaded.mismatches.is_empty() {
            return Ok(loaded.model);
        }
        mismatches.push(loaded.mismatches);
    }
    let nearest = mismatches.into_iter().min_by_key(Vec::len).unwrap_or_default();
    bail!("{} does not fit the MNIST network: {}", path.display(), nearest.join("; "))
}
