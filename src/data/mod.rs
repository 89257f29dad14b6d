//! Data sets for training programs.

mod text_windows;

pub use text_windows::{Tokens, WindowBatcher, WindowStarts, Windows, shift};
