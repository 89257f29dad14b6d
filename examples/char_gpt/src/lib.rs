//! The language-model example: a character-level GPT as in nanoGPT, text as a data set, and text generation.

pub mod generate;
pub mod model;
pub mod text;
pub mod train;
