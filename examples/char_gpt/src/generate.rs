//! `--generate`: text of a trained network.

use crate::{args::GptArgs, run::TrainedGpt, sampling::Sampling};
use anyhow::{Context, Result, anyhow};
use burn::tensor::Device;
use burn_ddp::process::console::print_line;
use std::process::ExitCode;

/// Prints the prompt and the text generated after it.
///
/// # Errors
/// If the model cannot be read, or the prompt has a character that the model does not know.
pub fn run(args: &GptArgs, prompt: &str) -> Result<ExitCode> {
    let model = args.model.as_deref().context("--generate needs --model")?;
    let model = TrainedGpt::open(model).context("--model")?;
    print_line(&text(&model, prompt, args.sampling())?);
    Ok(ExitCode::SUCCESS)
}

/// Generates text after `prompt`.
///
/// # Errors
/// If the prompt has a character that the model does not know.
pub fn text(TrainedGpt { net, vocabulary }: &TrainedGpt, prompt: &str, sampling: Sampling) -> Result<String> {
    let mut known = vocabulary.encode(prompt).map_err(|character| {
        anyhow!("--generate: the character {character:?} is not in the text that the model was trained on")
    })?;
    if known.is_empty() {
        // An empty prompt begins a line.
        known = vocabulary.encode("\n").unwrap_or_else(|_| vec![0]);
    }
    let generated = sampling.generate(net, &known, &Device::flex());
    let generated = generated.map_err(|error| anyhow!("cannot read the logits: {error}"))?;
    Ok(format!("{prompt}{}", vocabulary.decode(&generated)))
}
