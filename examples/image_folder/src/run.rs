//! A run folder of this example: network and classes, from `config.json`, and weights.

use crate::model::{ResNet, ResNetConfig};
use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use burn_ddp::run::{recorded, weights};
use serde::Deserialize;
use std::path::Path;

/// What `config.json` says about the network.
#[derive(Deserialize)]
struct Recorded {
    #[serde(flatten)]
    network: ResNetConfig,
    class_names: Vec<String>,
}

/// Opens the network of a run, or of a checkpoint or weights file in its folder, on the CPU.
///
/// # Errors
/// If `path` is not in the folder of such a run, or the weights cannot be read.
pub fn open(path: &Path) -> Result<ResNet> {
    let failed = || path.display().to_string();
    let Recorded { network, class_names } = recorded(path).with_context(failed)?;
    let net = ResNetConfig { classes: class_names.len(), ..network }.init(&Device::flex());
    let loaded = weights::load(net, path)?;
    match &loaded.mismatches[..] {
        [] => Ok(loaded.model),
        mismatches => bail!("{} does not fit its config.json: {}", failed(), mismatches.join("; ")),
    }
}

/// The classes of the run that contains `path`, if it is one of this example.
pub fn recorded_classes(path: &Path) -> Option<Vec<String>> {
    recorded(path).ok().map(|recorded: Recorded| recorded.class_names)
}
