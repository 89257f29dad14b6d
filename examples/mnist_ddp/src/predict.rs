//! `mnist_ddp predict`: classification of images of handwritten digits.

mod digit;
mod lighting;
mod picture;

pub use digit::digit;
pub use picture::{Picture, Plane};

use crate::{
    data::{CLASSES, PIXELS, SIDE, normalised},
    model::Net,
};
use anyhow::{Context, Result, anyhow};
use burn::tensor::{Device, Tensor, TensorData};
use burn_ddp::{
    process::{
        console::{eprint_line, print_line},
        exit,
    },
    run::tensor_io::{softmax, values},
};
use clap::Args;
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(Args)]
pub struct PredictArgs {
    /// Run folder, checkpoint or weights file
    #[arg(long, value_name = "RUN|FILE")]
    pub model: PathBuf,
    /// Print one JSON object per image, with logits and probabilities
    #[arg(long)]
    pub json: bool,
    /// Draw the input of the network
    #[arg(long, conflicts_with = "json")]
    pub show: bool,
    /// PNG or JPEG images of one digit each
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<PathBuf>,
}

/// Prediction for one image.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// The image file.
    pub file: PathBuf,
    /// The predicted digit, 0 to 9.
    pub digit: usize,
    /// Probability of each digit; the sum is 1.
    pub probabilities: Vec<f64>,
    /// The network's output before the softmax.
    pub logits: Vec<f32>,
}

/// Prints the digit in each image. An image that cannot be read does not affect the others.
///
/// # Errors
/// If the model cannot be read.
pub fn run(args: &PredictArgs) -> Result<ExitCode> {
    let device = Device::flex();
    let net = Net::open(&args.model, &device).context("--model")?;
    let mut code = ExitCode::SUCCESS;
    for file in &args.images {
        let seen = Picture::read(file).and_then(|picture| {
            let digit = digit(&picture).with_context(|| {
                format!("{}: no digit found: the image is blank or its contrast is too low", file.display())
            })?;
            Ok((predict(&net, &digit, file, &device)?, digit))
        });
        match seen {
            Ok((prediction, digit)) => {
                if args.show {
                    print_line(&render_text(&digit))?;
                }
                print_line(&if args.json {
                    serde_json::to_string(&prediction)?
                } else {
                    summary_line(&prediction)
                })?;
            }
            Err(error) => {
                eprint_line(&format!("error: {error:#}"));
                code = ExitCode::from(exit::FAILED);
            }
        }
    }
    Ok(code)
}

/// Classifies 28×28 pixels with 0 for background.
fn predict(net: &Net, pixels: &[u8; PIXELS], file: &Path, device: &Device) -> Result<Prediction> {
    let pixels: Vec<f32> = normalised(pixels).collect();
    let images = Tensor::<4>::from_data(TensorData::new(pixels, [1, 1, SIDE, SIDE]), device);
    let logits = values(net.forward(images)).map_err(|error| anyhow!("cannot read the logits: {error}"))?;
    let probabilities = softmax(&logits);
    let likelier = |a: &usize, b: &usize| probabilities[*a].total_cmp(&probabilities[*b]);
    let digit = (0..CLASSES.min(logits.len())).max_by(likelier).unwrap_or_default();
    Ok(Prediction { file: file.into(), digit, probabilities, logits })
}

/// Formats the digit and its alternatives.
fn summary_line(Prediction { file, digit, probabilities, .. }: &Prediction) -> String {
    let percent = |digit: usize| format!("{:.1} %", 100.0 * probabilities[digit]);
    let mut others: Vec<usize> = (0..probabilities.len()).filter(|other| other != digit).collect();
    others.sort_by(|a, b| probabilities[*b].total_cmp(&probabilities[*a]));
    let others = others.into_iter().filter(|other| probabilities[*other] >= 0.001).take(3);
    let others = others.map(|other| format!("{other}: {}", percent(other))).collect::<Vec<_>>().join(", ");
    let others = if others.is_empty() { others } else { format!("   ({others})") };
    format!("{}   {digit}   {}{others}", file.display(), percent(*digit))
}

/// Renders the pixels as text, with two rows per line.
fn render_text(pixels: &[u8; PIXELS]) -> String {
    const SHADES: [char; 8] = [' ', '.', ':', '-', '+', '*', '#', '@'];
    let line = |rows: &[u8]| {
        let (upper, lower) = rows.split_at(SIDE);
        let shade = |(a, b): (&u8, &u8)| SHADES[(usize::from(*a) + usize::from(*b)) / 64];
        upper.iter().zip(lower).map(shade).collect::<String>()
    };
    pixels.chunks(2 * SIDE).map(line).collect::<Vec<_>>().join("\n")
}
