//! A run folder of this example: network and vocabulary, from `config.json`, and weights.

use crate::{
    model::{Gpt, GptConfig},
    text::Vocabulary,
};
use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use burn_ddp::run::{self, weights};
use serde::Deserialize;
use std::path::Path;

/// What `config.json` says about the network.
#[derive(Deserialize)]
struct Recorded {
    #[serde(flatten)]
    network: GptConfig,
    vocabulary: String,
}

/// A trained network and its characters.
pub struct TrainedGpt {
    pub net: Gpt,
    pub vocabulary: Vocabulary,
}

impl TrainedGpt {
    /// Opens a run, or a checkpoint or weights file in its folder, on the CPU.
    ///
    /// # Errors
    /// If `path` is not in the folder of such a run, or the weights cannot be read.
    pub fn open(path: &Path) -> Result<Self> {
        let (network, vocabulary) = recorded(path).with_context(|| path.display().to_string())?;
        Ok(Self { net: weights::open(network.init(&Device::flex()), path)?, vocabulary })
    }
}

/// Network and vocabulary of the run that contains `path`.
///
/// # Errors
/// If there is no `config.json` of this example.
pub fn recorded(path: &Path) -> Result<(GptConfig, Vocabulary)> {
    let Recorded { network, vocabulary } = run::recorded(path)?;
    let vocabulary = Vocabulary::of(&vocabulary);
    if network.heads == 0
        || !network.width.is_multiple_of(network.heads)
        || !(0.0..1.0).contains(&network.dropout)
    {
        bail!("its config.json is damaged: heads, width or dropout");
    }
    Ok((GptConfig { characters: vocabulary.len(), ..network }, vocabulary))
}
