//! Value types of training flags.

use anyhow::{Result, bail};
use clap::ValueEnum;
use collective::lr::LrScaling;
use std::io::{IsTerminal, stdout};

/// Value of `--scale-lr`.
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

/// Value of `--progress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressArg {
    Auto,
    Bar,
    Plain,
    Tui,
}

impl ProgressArg {
    /// Checks that this terminal and build support the display.
    ///
    /// # Errors
    /// If the dashboard is not built in, or standard output is not a terminal.
    pub fn check(self) -> Result<()> {
        if self == ProgressArg::Tui && !cfg!(feature = "tui") {
            bail!("--progress tui: this program was built without the feature `tui`");
        }
        if self == ProgressArg::Tui && !stdout().is_terminal() {
            bail!("--progress tui needs a terminal as standard output");
        }
        Ok(())
    }
}
