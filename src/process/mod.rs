//! This process: what it prints, its stop signals and exit codes, and atomic writes of files.

pub mod atomic_file;
pub mod console;
pub mod exit;
pub mod stop;
