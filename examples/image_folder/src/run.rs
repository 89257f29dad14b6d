//! A run folder of this example: network and classes, from `config.json`, and weights.

use crate::model::{ResNet, ResNetConfig};
use anyhow::{Context, Result};
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
    let Recorded { network, class_names } = recorded(path).with_context(|| path.display().to_string())?;
    weights::open(ResNetConfig { classes: class_names.len(), ..network }.init(&Device::flex()), path)
}

/// The classes of the run that contains `path`, if it is one of this example.
pub fn recorded_classes(path: &Path) -> Option<Vec<String>> {
    recorded(path).ok().map(|recorded: Recorded| recorded.class_names)
}
