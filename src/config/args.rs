//! Command-line flags of a training program.
//!
//! [`context`](crate::context) and [`Config`](super::Config) resolve them for this machine.

use super::{
    checkpoints::CheckpointArgs,
    explicit::ExplicitFlags,
    gradients::GradientArgs,
    learning_rate::{Epochs, FindLrArgs, RateArgs},
};
use crate::{
    context::{
        ContextArgs,
        short_help::shown_in_short_help,
        values::{above_zero, positive, probability, rate, whole},
    },
    process::auto_batch,
};
use anyhow::{Result, bail};
use clap::{
    Args, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use collective::{lr::LrScaling, precision::Precision};
use serde::{Serialize, Serializer};
use std::{
    io::{IsTerminal, stdout},
    path::PathBuf,
};

/// Flags shared by all training programs.
///
/// Those that determine the result of a run are serialised as part of [`Config`](super::Config).
///
/// Flatten it as the first field of the program's arguments: it records the flags given on the command line. The help
/// shows the program's own flags first, under "Options".
///
/// ```
/// use burn_ddp::TrainerArgs;
/// use clap::Parser;
///
/// /// Trains a small network
/// #[derive(Parser)]
/// struct Args {
///     #[command(flatten)]
///     trainer: TrainerArgs,
///     /// Units of the hidden layer
///     #[arg(long, default_value_t = 32)]
///     hidden: usize,
/// }
///
/// let args = Args::parse_from(["program", "--epochs", "3", "--hidden", "64"]);
/// assert_eq!((args.trainer.batch_size, args.hidden), (64, 64));
/// ```
#[derive(Args, Clone, Debug, Serialize)]
#[command(about = None, long_about = None, mut_args(shown_in_short_help))]
pub struct TrainerArgs {
    // Must be first: the fields after it remove their values from the parsed matches.
    #[command(flatten)]
    #[serde(skip)]
    pub(crate) explicit: ExplicitFlags,

    #[command(flatten)]
    #[serde(skip)]
    pub context: ContextArgs,

    /// Keep the file's order instead of shuffling every epoch
    #[arg(long, help_heading = "Data")]
    #[serde(rename = "shuffle", serialize_with = "negated")]
    pub no_shuffle: bool,
    /// Fraction of the training set held out for validation; the test set is then evaluated once, at the end
    ///
    /// Early stopping and the best checkpoint then depend on validation. Which samples are held out depends on
    /// --seed only. Without it, the test set is evaluated after every epoch.
    #[arg(
        long, default_value_t = 0.0, value_name = "FRACTION", value_parser = probability,
        help_heading = "Data"
    )]
    pub valid_split: f64,
    /// Data loader threads; 0 builds batches between steps
    #[arg(
        long, default_value_t = 1, value_name = "N", value_parser = whole(0..=256), help_heading = "Data"
    )]
    pub workers: usize,

    /// Compute BatchNorm statistics over all ranks
    #[arg(long, help_heading = "Model")]
    pub sync_bn: bool,
    /// Initial weights: a run folder, .bpk, .pt, .pth or .safetensors
    ///
    /// .pt, .pth and .safetensors have PyTorch's key names.
    #[arg(long, visible_alias = "weights", value_name = "FILE", help_heading = "Model")]
    pub init_from: Option<PathBuf>,
    /// Ignore parameters of --init-from that do not match, with a warning
    #[arg(long, requires = "init_from", help_heading = "Model")]
    #[serde(skip)]
    pub no_strict: bool,

    /// Number of epochs; 0.5 is half an epoch
    #[arg(long, default_value = "1", value_name = "N", help_heading = "Training")]
    pub epochs: Epochs,
    /// Samples per rank and step; in dp mode, samples per step over all devices
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = batch_size, help_heading = "Training")]
    pub batch_size: usize,
    /// Halve --batch-size and double --grad-accum-steps while device memory does not suffice
    ///
    /// All ranks start again, from the last checkpoint of --run-dir if there is one. The global batch stays the same,
    /// but BatchNorm computes its statistics over the smaller batches. Evaluation uses them, too.
    #[arg(long, help_heading = "Training")]
    #[serde(skip)]
    pub auto_batch: bool,
    /// Learning rate of one rank
    #[arg(long, default_value_t = 0.05, value_name = "RATE", value_parser = rate, help_heading = "Training")]
    pub lr: f64,
    /// Scaling of the learning rate with the world size
    #[arg(long, default_value = "linear", value_parser = lr_scaling(), help_heading = "Training")]
    pub scale_lr: LrScaling,
    /// Seed of weights, data order, dropout and augmentation
    #[arg(long, default_value_t = 42, value_name = "SEED", help_heading = "Training")]
    pub seed: u64,
    /// Number of optimizer steps after which training ends with an evaluation
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Training")]
    pub max_steps: Option<usize>,
    /// Check the program with N batches: train, validate, save, load and test, without leaving files
    #[arg(
        long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "3",
        value_parser = positive, conflicts_with_all = ["find_lr", "resume"], help_heading = "Training"
    )]
    #[serde(skip)]
    pub fast_dev_run: Option<usize>,
    #[command(flatten)]
    #[serde(flatten)]
    pub rate: RateArgs,
    #[command(flatten)]
    #[serde(skip)]
    pub find_lr: FindLrArgs,
    /// Evaluate, save and export an exponential moving average of the weights with this decay, such as 0.999
    #[arg(long, value_name = "DECAY", value_parser = probability, help_heading = "Training")]
    pub ema: Option<f64>,
    /// Peak TFLOP/s of a rank's device, for the utilisation [default: that of a known NVIDIA GPU]
    ///
    /// After every epoch, the share of it that the network's products take is shown and logged.
    #[arg(long, value_name = "TFLOPS", value_parser = above_zero, help_heading = "Training")]
    pub peak_tflops: Option<f64>,
    /// Continue when the training loss is NaN or infinite
    #[arg(long, help_heading = "Training")]
    pub allow_nan: bool,

    #[command(flatten)]
    #[serde(flatten)]
    pub gradients: GradientArgs,

    // Flags after this struct are the program's own, without a heading.
    #[command(flatten, next_help_heading = None)]
    #[serde(flatten)]
    pub checkpoints: CheckpointArgs,

    /// Run folder [default: runs/DATE-TIME]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    #[serde(skip)]
    pub run_dir: Option<PathBuf>,
    /// Write the trained weights to a new .safetensors file, with PyTorch's key names and layouts
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    #[serde(skip)]
    pub export: Option<PathBuf>,
    /// Write TensorBoard histograms of parameters and gradients every N steps
    #[arg(
        long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "100",
        value_parser = positive, help_heading = "Output"
    )]
    #[serde(skip)]
    pub histograms: Option<usize>,
    /// Log the run to the MLflow tracking server at this address
    ///
    /// Credentials are read from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN.
    #[arg(long, value_name = "URI", help_heading = "Output")]
    #[serde(skip)]
    pub mlflow: Option<String>,
    /// MLflow experiment [default: the program's name]
    #[arg(long, value_name = "NAME", requires = "mlflow", help_heading = "Output")]
    #[serde(skip)]
    pub mlflow_experiment: Option<String>,
    /// Progress display: auto is bar on a terminal and plain elsewhere; tui is a dashboard
    #[arg(long, value_enum, default_value_t = ProgressArg::Auto, help_heading = "Output")]
    #[serde(skip)]
    pub progress: ProgressArg,
    /// Read flags from a TOML file, a config.json or a run folder
    ///
    /// Flags of the command line override those of the file.
    #[arg(long, value_name = "FILE|RUN", help_heading = "Configuration")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Print the resolved configuration as JSON and exit
    #[arg(long, help_heading = "Configuration")]
    #[serde(skip)]
    pub print_config: bool,
}

/// Serialises `--no-shuffle` as `shuffle`.
fn negated<S: Serializer>(flag: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(!flag)
}

/// Parser of `--batch-size`, divided for `--auto-batch`.
fn batch_size(text: &str) -> Result<usize, String> {
    let (size, divisor) = (positive(text)?, auto_batch::divisor()?);
    if !size.is_multiple_of(divisor) {
        return Err(format!("{size} cannot be divided by {}={divisor}", auto_batch::DIVISOR));
    }
    Ok(size / divisor)
}

/// Parser of `--scale-lr`.
fn lr_scaling() -> impl TypedValueParser<Value = LrScaling> {
    PossibleValuesParser::new(["linear", "sqrt", "none"]).try_map(|name| serde_json::from_value(name.into()))
}

/// Value of `--progress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressArg {
    Auto,
    Bar,
    Plain,
    Tui,
}

impl TrainerArgs {
    /// Validates the flags that do not depend on devices or data.
    ///
    /// # Errors
    /// If a flag is invalid or flags contradict each other. The error names them.
    pub fn check(&self) -> Result<()> {
        self.checkpoints.check(self.run_dir.as_deref())?;
        self.rate.check()?;
        if self.gradients.sync_every.is_some() {
            self.check_local_sgd()?;
        }
        if self.progress == ProgressArg::Tui && !cfg!(feature = "tui") {
            bail!("--progress tui: this program was built without the feature `tui`");
        }
        if self.progress == ProgressArg::Tui && !stdout().is_terminal() {
            bail!("--progress tui needs a terminal as standard output");
        }
        Ok(())
    }

    /// Refuses flags that need all ranks in every step.
    fn check_local_sgd(&self) -> Result<()> {
        let scales = self.explicit.0.contains_key("scale-lr") && self.scale_lr != LrScaling::None;
        let gradients = &self.gradients;
        for (flag, is_set, why) in [
            ("--scale-lr", scales, "a step has one rank's batch at any world size"),
            (
                "--precision f16",
                gradients.precision == Precision::F16,
                "ranks would have different loss scales",
            ),
            ("--sync-bn", self.sync_bn, "ranks do not exchange statistics in every step"),
            ("--shard-optimizer", gradients.shard_optimizer, "every rank needs its whole optimizer"),
            ("--ema", self.ema.is_some(), "ranks would have different averages"),
            ("--find-lr", self.find_lr.find_lr.is_some(), "ranks do not average gradients"),
        ] {
            if is_set {
                bail!("{flag}: with --sync-every, {why}; remove one of the two flags");
            }
        }
        if let (Some(overlap), Some(every)) = (gradients.sync_overlap, gradients.sync_every)
            && overlap >= every
        {
            bail!("--sync-overlap {overlap}: it must be less than --sync-every, {every}");
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    /// A program with additional flags.
    #[derive(Parser, Debug)]
    pub struct Program {
        #[command(flatten)]
        pub trainer: TrainerArgs,
        /// Dropout probability
        #[arg(long, hide_short_help = true)]
        pub dropout: Option<f64>,
        /// Add BatchNorm
        #[arg(long, hide_short_help = true)]
        pub batch_norm: bool,
    }

    #[test]
    fn every_number_has_bounds() {
        // Any number is a seed.
        let unbounded = ["seed"];
        let command = Program::command();
        let numbers = command.get_arguments().filter(|arg| {
            let names = arg.get_value_names().unwrap_or_default();
            names.iter().any(|name| {
                ["N", "MIB", "NORM", "EPOCHS", "F", "FRACTION", "SECONDS"].contains(&name.as_str())
            })
        });
        let numbers: Vec<_> = numbers.filter(|arg| !unbounded.contains(&arg.get_id().as_str())).collect();
        assert!(numbers.len() > 15, "{numbers:?}");
        for arg in numbers {
            let flag = format!("--{}", arg.get_long().expect("a long flag"));
            for bad in ["18446744073709551615", "1e300", "-1", "NaN"] {
                let parsed = Program::try_parse_from(["program".to_owned(), format!("{flag}={bad}")]);
                assert!(parsed.is_err(), "{flag}={bad} is accepted");
            }
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for bad in ["--lr=NaN", "--batch-size=0"] {
            assert!(Program::try_parse_from(["program", bad]).is_err(), "{bad}");
        }
    }
}
