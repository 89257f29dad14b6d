//! Process utilities: console output, stop signals, exit codes and atomic file writes.

pub mod atomic_file;
pub mod console;
pub mod exit;
pub mod stop;
