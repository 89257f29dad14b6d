//! The console: the one place that prints. Reports are printed on rank 0 only, errors on every rank.
//!
//! A closed output is not an error.

use std::io::{Write, stderr, stdout};

/// Prints what a run reports, on rank 0 alone.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    visible: bool,
}

impl Console {
    /// A console that prints, or one that does nothing.
    pub fn new(visible: bool) -> Self {
        Self { visible }
    }

    /// Whether anything is printed.
    pub fn is_visible(self) -> bool {
        self.visible
    }

    /// Prints a line to standard output.
    pub fn say(self, line: &str) {
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
    // A reader that has closed the pipe does not want the line.
    let _ = writeln!(stdout(), "{line}");
}

/// Prints a line to standard error, from any rank or the launcher.
pub fn eprint_line(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}
