//! Training from command-line flags.

use crate::{
    args::GptArgs,
    generate,
    model::Gpt,
    optimizer::adam_w,
    output::describe,
    run::{TrainedGpt, recorded},
    text::Text,
};
use anyhow::{Context as _, Result, bail};
use burn::train::metric::LossMetric;
use burn_ddp::{
    Context, Trainer,
    process::console::Console,
    trainer::{Loaders, start},
};
use serde::Deserialize;
use std::{fs, path::Path, process::ExitCode, sync::Arc};

/// Starts the ranks, or trains if this process is a rank.
///
/// # Errors
/// If flags or the text are invalid, or training fails.
pub fn run(args: &GptArgs) -> Result<ExitCode> {
    start(&args.trainer, || check(args), |context| train(context, args))
}

fn load(args: &GptArgs) -> Result<Text> {
    Text::load(args.text.as_deref(), [args.trainer.valid_split, args.test_split], args.block_size)
}

fn check(args: &GptArgs) -> Result<()> {
    args.check()?;
    let text = load(args)?;
    let Some(path) = &args.trainer.init_from else { return Ok(()) };
    match recorded(path) {
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
    let trainer = Trainer::new(context, &args.trainer)
        .dataset(&text.name, &text.source)
        .data_digest("--text (digest of the text)", text.digest.clone())
        .setting("test-split", args.test_split)
        .setting("block-size", args.block_size)
        .setting("layers", args.layers)
        .setting("heads", args.heads)
        .setting("width", args.width)
        .setting("dropout", args.dropout)
        .setting("tie-weights", args.tie_weights)
        .setting("weight-decay", args.weight_decay)
        .setting("beta1", args.beta1)
        .setting("beta2", args.beta2)
        .recorded("vocabulary", text.vocabulary.characters())
        .data_parallel()
        .learner(|training| training.metrics((LossMetric::new(),)))
        .finished(|folder| print_result(context.console(), args, folder));
    let loaders = loaders(&trainer, args, &text);
    let net = trainer.init(|device| args.network(text.vocabulary.len()).init(device));
    trainer.fit(net, adam_w(args.beta1, args.beta2, args.weight_decay), loaders)
}

// ANCHOR: loaders
/// This rank's share of the training, validation and test windows.
fn loaders(trainer: &Trainer<'_, Gpt>, args: &GptArgs, text: &Text) -> Loaders<Gpt> {
    let evaluated = |tokens| Arc::new(trainer.windows(tokens, args.block_size));
    let valid = (!text.valid.is_empty()).then(|| evaluated(&text.valid) as _);
    let train = Arc::new(trainer.train_windows(&text.train, args.block_size));
    Loaders::new(train, evaluated(&text.test)).with_validation(valid)
}
// ANCHOR_END: loaders

/// Losses in `summary.json`.
#[derive(Deserialize)]
struct Summary {
    test_loss: Option<f64>,
    valid_loss: Option<f64>,
}

/// Prints the losses and a sample of generated text.
fn print_result(console: Console, args: &GptArgs, folder: &Path) -> Result<()> {
    let summary = folder.join("summary.json");
    let failed = || format!("cannot read {}", summary.display());
    let text = fs::read(&summary).with_context(failed)?;
    let Summary { test_loss, valid_loss } = serde_json::from_slice(&text).with_context(failed)?;
    for (set, loss) in [("validation", valid_loss), ("test", test_loss)] {
        if let Some(loss) = loss {
            console.print(&format!("{set:<13} {}", describe(loss)));
        }
    }
    if args.length > 0 {
        let sample = generate::text(&TrainedGpt::open(folder)?, "", args.sampling())?;
        console
            .print(&format!("sample        {} characters at temperature {}:", args.length, args.temperature));
        console.print(sample.trim_start_matches('\n'));
    }
    Ok(())
}
