//! Weights of the MNIST network: reading from a run or file, and export for PyTorch.

mod export;

pub use export::{WeightsCommand, run};

use crate::model::{Net, NetConfig};
use anyhow::{Result, bail};
use burn::tensor::Device;
use burn_ddp::run::weights::load;
use std::path::Path;

/// Loads the network of a run or file onto `device`.
///
/// It has BatchNorm if the file has.
///
/// # Errors
/// If the file cannot be read, or does not contain exactly such a network.
pub fn open(path: &Path, device: &Device) -> Result<Net> {
    let load = |batch_norm| load(NetConfig { batch_norm, dropout: [0.0; 2] }.init(device), path);
    let mut nearest = load(false)?;
    if !nearest.mismatches.is_empty() {
        let other = load(true)?;
        if other.mismatches.len() < nearest.mismatches.len() {
            nearest = other;
        }
    }
    match &nearest.mismatches[..] {
        [] => Ok(nearest.model),
        mismatches => bail!("{} does not fit the MNIST network: {}", path.display(), mismatches.join("; ")),
    }
}
