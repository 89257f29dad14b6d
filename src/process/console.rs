//! Console output: all printing goes through this module.
//!
//! Reports are printed on rank 0 only, errors on every rank. A closed output is not an error.

use std::io::{Write, stderr, stdout};

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
            print_line(line);
        }
    }

    /// Prints a warning to standard error.
    pub fn warn(self, line: &str) {
        if self.visible {
            eprint_line(&format!("warning: {line}"));
        }
    }
}

/// Prints a line to standard output.
pub fn print_line(line: &str) {
    // A closed pipe is not an error.
    let _ = writeln!(stdout(), "{line}");
}

/// Prints a line to standard error, from any rank or the launcher.
pub fn eprint_line(line: &str) {
    // In one write, because other ranks may write to the same file.
    let _ = stderr().write_all(format!("{line}\n").as_bytes());
}
