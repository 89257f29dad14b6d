//! Text generation with a trained network.

use crate::{
    model::{Gpt, GptConfig},
    text::Vocabulary,
};
use anyhow::{Context, Result, anyhow, bail};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_ddp::sampler::mix;
use burn_ddp::{
    context::values::{positive, rate, whole},
    run::{
        recorded,
        tensor_io::{softmax, values},
        weights,
    },
};
use clap::Args;
use serde::Deserialize;
use std::path::Path;

/// How characters are drawn.
#[derive(Args, Clone, Copy, Debug)]
#[command(about = None, long_about = None, next_help_heading = "Generation")]
pub struct Sampling {
    /// Characters to generate, also after training; 0 generates none
    #[arg(
        long, default_value_t = 300, value_name = "N", value_parser = whole(0..=1_000_000),
        hide_short_help = true
    )]
    pub length: usize,
    /// Divisor of the logits; 0 always takes the most likely character
    #[arg(long, default_value_t = 0.8, value_name = "T", value_parser = rate, hide_short_help = true)]
    pub temperature: f64,
    /// Sample from the K most likely characters only
    #[arg(long, value_name = "K", value_parser = positive, hide_short_help = true)]
    pub top_k: Option<usize>,
}

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
        let (network, vocabulary) = recorded_network(path).with_context(|| path.display().to_string())?;
        Ok(Self { net: weights::open(network.init(&Device::flex()), path)?, vocabulary })
    }

    /// Generates text after `prompt`.
    ///
    /// # Errors
    /// If the prompt has a character that the model does not know, or the logits cannot be read.
    pub fn generate(&self, prompt: &str, sampling: Sampling, seed: u64) -> Result<String> {
        let mut known = self.vocabulary.encode(prompt).map_err(|character| {
            anyhow!(
                "--generate: the character {character:?} is not in the text that the model was trained on"
            )
        })?;
        if known.is_empty() {
            // An empty prompt begins a line.
            known = self.vocabulary.encode("\n").unwrap_or_else(|_| vec![0]);
        }
        let first = known.len();
        for step in 0..sampling.length {
            let context = &known[known.len().saturating_sub(self.net.block_size())..];
            let shape = [1, context.len()];
            let input =
                Tensor::<2, Int>::from_data(TensorData::new(context.to_vec(), shape), &Device::flex());
            let logits = values::<f32, 3, _>(self.net.forward(input).narrow(1, shape[1] - 1, 1));
            let logits = logits.map_err(|error| anyhow!("cannot read the logits: {error}"))?;
            known.push(sampling.draw(&logits, mix(seed, step as u64)));
        }
        Ok(format!("{prompt}{}", self.vocabulary.decode(&known[first..])))
    }
}

/// Network and vocabulary of the run that contains `path`.
///
/// # Errors
/// If there is no `config.json` of this example.
pub fn recorded_network(path: &Path) -> Result<(GptConfig, Vocabulary)> {
    let Recorded { network, vocabulary } = recorded(path)?;
    let vocabulary = Vocabulary::from_text(&vocabulary);
    if network.heads == 0
        || !network.width.is_multiple_of(network.heads)
        || !(0.0..1.0).contains(&network.dropout)
    {
        bail!("its config.json is damaged: heads, width or dropout");
    }
    Ok((GptConfig { characters: vocabulary.len(), ..network }, vocabulary))
}

impl Sampling {
    /// Draws a character from its logits with the bits `random`.
    pub fn draw(&self, logits: &[f32], random: u64) -> i32 {
        let mut likeliest: Vec<usize> = (0..logits.len()).collect();
        likeliest.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        likeliest.truncate(self.top_k.unwrap_or(logits.len()));
        let first = likeliest.first().map_or(0, |first| *first as i32);
        if self.temperature == 0.0 {
            return first;
        }
        let scaled: Vec<f32> =
            likeliest.iter().map(|at| (f64::from(logits[*at]) / self.temperature) as f32).collect();
        // The upper 53 bits as a number from 0 to below 1.
        let mut left = (random >> 11) as f64 / (1u64 << 53) as f64;
        for (character, probability) in likeliest.iter().zip(softmax(&scaled)) {
            left -= probability;
            if left < 0.0 {
                return *character as i32;
            }
        }
        // Rounding, or a temperature so low that the scaled logits overflow.
        first
    }
}
