//! Console output: all printing goes through this module.
//!
//! Reports are printed on rank 0 only, errors on every rank.

use anyhow::{Context, Result};
use std::io::{ErrorKind, Write, stderr, stdout};

/// Printer that is active on rank 0 only.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    visible: bool,
}

impl Console {
    /// Creates a console that prints if `visible`.
    pub fn new(visible: bool) -> Self {
        Self { visible }
    }

    /// Whether anything is printed.
    pub fn is_visible(self) -> bool {
        self.visible
    }

    /// Prints a line to standard output.
    pub fn print(self, line: &str) {
        if self.visible {
            // The results of a training are in files, too.
            let _ = print_line(line);
        }
    }

    /// Prints a warning to standard error.
    pub fn warn(self, line: &str) {
        if self.visible {
            eprint_line(&format!("warning: {line}"));
        }
    }
}

/// Prints a line to standard output. A closed pipe is not an error.
///
/// # Errors
/// If it cannot be written, for example because a disk is full.
pub fn print_line(line: &str) -> Result<()> {
    match writeln!(stdout(), "{line}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Prints a line to standard error, from any rank or the launcher.
pub fn eprint_line(line: &str) {
    // In one write, because other ranks may write to the same file.
    let _ = stderr().write_all(format!("{line}\n").as_bytes());
}
