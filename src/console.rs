//! The console: the one place that prints. Only rank 0 has a visible one; errors are printed by every rank.

use crate::print::{eprint_line, print_line};

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
