//! The flags of the language-model example.

use crate::{model::GptConfig, sampling::Sampling};
use anyhow::{Result, bail};
use burn_ddp::{
    TrainerArgs,
    context::values::{bounded, positive, probability, rate, up_to, whole},
};
use clap::Args;
use std::path::PathBuf;

/// Train a character-level GPT, or generate text
// The defaults of the trainer's flags are similar to nanoGPT's for a CPU.
#[derive(Args, Clone, Debug)]
#[command(
    mut_arg("epochs", |arg| arg.default_value("5")),
    mut_arg("batch_size", |arg| arg.default_value("16")),
    mut_arg("lr", |arg| arg.default_value("0.001")),
    mut_arg("scale_lr", |arg| arg.default_value("sqrt")),
    mut_arg("lr_schedule", |arg| arg.default_value("cosine")),
    mut_arg("warmup_epochs", |arg| arg.default_value("0.2")),
    mut_arg("warmup_start_factor", |arg| arg.default_value("0.01")),
    mut_arg("clip_grad_norm", |arg| arg.default_value("1")),
    mut_arg("valid_split", |arg| arg.default_value("0.1").long_help(
        "Fraction of the text before the test part for validation; with 0, the test part is evaluated after every epoch"
    )),
)]
pub struct GptArgs {
    #[command(flatten)]
    pub trainer: TrainerArgs,

    /// UTF-8 text [default: the book of this repository]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub text: Option<PathBuf>,
    /// Fraction of the text for the test, at its end
    #[arg(
        long, default_value_t = 0.1, value_name = "FRACTION", value_parser = fraction, hide_short_help = true,
        help_heading = "Data"
    )]
    pub test_split: f64,

    /// Context length: characters that the model sees
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = up_to(65_536), help_heading = "Model")]
    pub block_size: usize,
    /// Number of transformer blocks
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = up_to(1_000), help_heading = "Model")]
    pub layers: usize,
    /// Attention heads per block
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = up_to(65_536), help_heading = "Model")]
    pub heads: usize,
    /// Embedding size, a multiple of --heads
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = up_to(65_536), help_heading = "Model")]
    pub width: usize,
    /// Dropout probability; 0 disables dropout
    #[arg(
        long, default_value_t = 0.0, value_name = "P", value_parser = probability, hide_short_help = true,
        help_heading = "Model"
    )]
    pub dropout: f64,
    /// Use the token embedding as the weights of the output layer
    #[arg(long, hide_short_help = true, help_heading = "Model")]
    pub tie_weights: bool,

    /// AdamW: decoupled weight decay of matrices and embeddings
    #[arg(
        long, default_value_t = 0.1, value_name = "DECAY", value_parser = rate, hide_short_help = true,
        help_heading = "Training"
    )]
    pub weight_decay: f64,
    /// AdamW: decay rate of the first moment
    #[arg(
        long, default_value_t = 0.9, value_name = "BETA", value_parser = probability, hide_short_help = true,
        help_heading = "Training"
    )]
    pub beta1: f64,
    /// AdamW: decay rate of the second moment
    #[arg(
        long, default_value_t = 0.99, value_name = "BETA", value_parser = probability, hide_short_help = true,
        help_heading = "Training"
    )]
    pub beta2: f64,

    /// Generate text after TEXT with a trained model instead of training
    #[arg(long, value_name = "TEXT", requires = "model", help_heading = "Generation")]
    pub generate: Option<String>,
    /// Run folder or checkpoint of --generate
    #[arg(long, value_name = "RUN", requires = "generate", help_heading = "Generation")]
    pub model: Option<PathBuf>,
    /// Characters to generate, also after training; 0 generates none
    #[arg(
        long,
        default_value_t = 300,
        value_name = "N",
        value_parser = characters,
        hide_short_help = true,
        help_heading = "Generation"
    )]
    pub length: usize,
    /// Divisor of the logits; 0 always takes the most likely character
    #[arg(
        long, default_value_t = 0.8, value_name = "T", value_parser = rate, hide_short_help = true,
        help_heading = "Generation"
    )]
    pub temperature: f64,
    /// Sample from the K most likely characters only
    #[arg(
        long, value_name = "K", value_parser = positive, hide_short_help = true, help_heading = "Generation"
    )]
    pub top_k: Option<usize>,
}

/// Parses a number of characters to generate.
fn characters(text: &str) -> Result<usize, String> {
    whole(text, 0..=1_000_000)
}

impl GptArgs {
    /// Checks the flags before any rank is started.
    ///
    /// # Errors
    /// If flags contradict each other.
    pub fn check(&self) -> Result<()> {
        let Self { heads, width, .. } = self;
        if !width.is_multiple_of(*heads) {
            bail!("--width {width} is not a multiple of --heads {heads}");
        }
        Ok(())
    }

    /// The network for a vocabulary of `characters` characters.
    pub fn network(&self, characters: usize) -> GptConfig {
        GptConfig {
            characters,
            block_size: self.block_size,
            layers: self.layers,
            heads: self.heads,
            width: self.width,
            dropout: self.dropout,
            tie_weights: self.tie_weights,
        }
    }

    /// How text is generated.
    pub fn sampling(&self) -> Sampling {
        let Self { length, temperature, top_k, .. } = *self;
        Sampling { length, temperature, top_k, seed: self.trainer.seed }
    }
}

/// Parses a fraction of the text.
fn fraction(text: &str) -> Result<f64, String> {
    bounded(text, "a number above 0 and below 1", |x| x > 0.0 && x < 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        gpt: GptArgs,
    }

    #[test]
    fn the_defaults_are_valid_and_can_be_overridden() {
        Flags::command().debug_assert();
        let gpt = |flags: &[&str]| {
            let line = ["program"].iter().chain(flags);
            Flags::try_parse_from(line).unwrap_or_else(|error| panic!("{flags:?}: {error}")).gpt
        };
        let defaults = gpt(&[]);
        assert_eq!((defaults.trainer.lr, defaults.trainer.gradients.clip_grad_norm), (0.001, Some(1.0)));
        assert!(defaults.trainer.check().and_then(|()| defaults.check()).is_ok());
        assert_eq!(gpt(&["--lr", "0.5"]).trainer.lr, 0.5);
        assert!(gpt(&["--heads", "3"]).check().is_err());
    }
}
