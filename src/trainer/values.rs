//! The values of flags about training.

use clap::ValueEnum;
use collective::lr::LrScaling;

/// `--scale-lr`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScaleArg {
    Linear,
    Sqrt,
    None,
}

impl From<ScaleArg> for LrScaling {
    fn from(scale: ScaleArg) -> Self {
        match scale {
            ScaleArg::Linear => LrScaling::Linear,
            ScaleArg::Sqrt => LrScaling::Sqrt,
            ScaleArg::None => LrScaling::None,
        }
    }
}

/// `--progress`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressArg {
    Auto,
    Bar,
    Plain,
    Tui,
}
