//! Command line, optimizer and training.

use crate::{
    generate::{Sampling, TrainedGpt, recorded_network},
    model::{Gpt, GptConfig},
    text::Text,
};
use anyhow::{Context as _, Result, bail};
use burn::module::ParamGroup;
use burn::optim::ModuleOptimizer;
use burn::train::metric::LossMetric;
use burn_ddp::optim::AdamWConfig;
use burn_ddp::{
    Context, Trainer, TrainerArgs,
    context::values::{number, probability, rate},
    process::console::{Console, print_line},
    run::{ExportArgs, Summary},
    trainer::{Loaders, start},
};
use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use std::{
    f64::consts::LN_2,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

/// PyTorch's default of AdamW.
const ADAM_EPSILON: f32 = 1e-8;

/// Train a character-level GPT, or generate text
// The defaults of the trainer's flags are similar to nanoGPT's for a CPU.
#[derive(Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    after_help = "These are the flags to begin with; --help lists all.",
    after_long_help = "",
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
        long, default_value_t = 0.1, value_name = "FRACTION", hide_short_help = true, help_heading = "Data",
        value_parser = number("a number above 0 and below 1", |x| x > 0.0 && x < 1.0)
    )]
    pub test_split: f64,

    #[command(flatten)]
    pub network: GptConfig,
    #[command(flatten)]
    pub adam: AdamArgs,

    /// Generate text after TEXT with a trained model instead of training
    #[arg(long, value_name = "TEXT", requires = "model", help_heading = "Generation")]
    pub generate: Option<String>,
    /// Run folder or checkpoint of --generate
    #[arg(long, value_name = "RUN", requires = "generate", help_heading = "Generation")]
    pub model: Option<PathBuf>,
    #[command(flatten, next_help_heading = None)]
    pub sampling: Sampling,

    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Export weights for other programs
    Export(ExportArgs),
}

/// Flags of AdamW.
#[derive(Args, Clone, Copy, Debug, Serialize)]
#[command(about = None, long_about = None, next_help_heading = "Training")]
pub struct AdamArgs {
    /// AdamW: decoupled weight decay of matrices and embeddings
    #[arg(long, default_value_t = 0.1, value_name = "DECAY", value_parser = rate, hide_short_help = true)]
    pub weight_decay: f64,
    /// AdamW: decay rate of the first moment
    #[arg(long, default_value_t = 0.9, value_name = "BETA", value_parser = probability, hide_short_help = true)]
    pub beta1: f64,
    /// AdamW: decay rate of the second moment
    #[arg(long, default_value_t = 0.99, value_name = "BETA", value_parser = probability, hide_short_help = true)]
    pub beta2: f64,
}

impl AdamArgs {
    /// Creates the optimizer. As in nanoGPT, biases and the parameters of LayerNorm are not decayed.
    pub fn init(&self) -> ModuleOptimizer {
        let config = AdamWConfig::new().with_beta_1(self.beta1 as f32).with_beta_2(self.beta2 as f32);
        let with_decay = |decay| config.clone().with_epsilon(ADAM_EPSILON).with_weight_decay(decay);
        let plain = ParamGroup::from_any_predicates(vec!["bias", "gamma", "beta"]);
        with_decay(self.weight_decay as f32).init().with_group(plain, with_decay(0.0).build(), None)
    }
}

/// Runs a command or generates text; otherwise starts the ranks, or trains if this process is a rank.
///
/// # Errors
/// If flags or the text are invalid, a model cannot be read, or training fails.
pub fn run(args: &GptArgs) -> Result<ExitCode> {
    if let Some(Command::Export(args)) = &args.command {
        return args.run(|from| Ok(TrainedGpt::open(from)?.net));
    }
    let (Some(prompt), Some(model)) = (&args.generate, &args.model) else {
        return start(&args.trainer, || check(args), |context| train(context, args));
    };
    let trained = TrainedGpt::open(model).context("--model")?;
    print_line(&trained.generate(prompt, args.sampling, args.trainer.seed)?)?;
    Ok(ExitCode::SUCCESS)
}

fn load(args: &GptArgs) -> Result<Text> {
    Text::load(args.text.as_deref(), [args.trainer.valid_split, args.test_split], args.network.block_size)
}

/// Checks the flags and the text before any rank is started.
fn check(args: &GptArgs) -> Result<()> {
    let GptConfig { heads, width, .. } = args.network;
    if !width.is_multiple_of(heads) {
        bail!("--width {width} is not a multiple of --heads {heads}");
    }
    let text = load(args)?;
    let Some(path) = &args.trainer.init_from else { return Ok(()) };
    match recorded_network(path) {
        Ok((_, vocabulary)) if vocabulary != text.vocabulary => bail!(
            "--init-from {}: its vocabulary is not that of the text; train on a text with the same characters",
            path.display()
        ),
        // Weights from other programs have no vocabulary.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Trains on one rank.
fn train(context: &Context, args: &GptArgs) -> Result<()> {
    let text = load(args)?;
    let network = GptConfig { characters: text.vocabulary.len(), ..args.network };
    let trainer = Trainer::new(context, &args.trainer)
        .dataset(&text.name, &text.source)
        .data_digest("--text (digest of the text)", text.digest.clone())
        .must_match("test-split", args.test_split)
        .must_match_fields(&args.network)
        .must_match_fields(&args.adam)
        .note("vocabulary", text.vocabulary.characters())
        .flops_per_sample(network.flops())
        .data_parallel()
        .learner(|training| training.metrics((LossMetric::new(),)))
        .finished(|folder, summary| print_result(args, folder, summary));
    let loaders = loaders(&trainer, args, &text);
    let net = trainer.init(|device| network.init(device));
    trainer.fit(net, args.adam.init(), loaders)?;
    Ok(())
}

// ANCHOR: loaders
/// This rank's share of the training, validation and test windows.
fn loaders(trainer: &Trainer<'_, Gpt>, args: &GptArgs, text: &Text) -> Loaders<Gpt> {
    let evaluated = |tokens| Arc::new(trainer.windows(tokens, args.network.block_size));
    let valid = (!text.valid.is_empty()).then(|| evaluated(&text.valid) as _);
    let train = Arc::new(trainer.train_windows(&text.train, args.network.block_size));
    Loaders { train, valid, test: evaluated(&text.test) }
}
// ANCHOR_END: loaders

/// Prints the losses and a sample of generated text.
fn print_result(args: &GptArgs, folder: &Path, summary: &Summary) -> Result<()> {
    let console = Console::new(true);
    for (set, name) in [("validation", "valid_loss"), ("test", "test_loss")] {
        if let Some(Some(loss)) = summary.metrics.get(name) {
            let (bits, perplexity) = (loss / LN_2, loss.exp());
            console.print(&format!(
                "{set:<13} {loss:.4} nats = {bits:.4} bits per character, perplexity {perplexity:.2}"
            ));
        }
    }
    let Sampling { length, temperature, .. } = args.sampling;
    if length > 0 {
        let sample = TrainedGpt::open(folder)?.generate("", args.sampling, args.trainer.seed)?;
        console.print(&format!("sample        {length} characters at temperature {temperature}:"));
        console.print(sample.trim_start_matches('\n'));
    }
    Ok(())
}
