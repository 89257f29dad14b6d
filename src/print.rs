//! Output of whole lines. A closed output is not an error.

use std::io::{Write, stderr, stdout};

/// Prints a line to standard output.
pub fn print_line(line: &str) {
    // A reader that has closed the pipe does not want the line.
    let _ = writeln!(stdout(), "{line}");
}

/// Prints a line to standard error, from any rank or the launcher.
pub fn eprint_line(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}
