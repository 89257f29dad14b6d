//! The language-model example: a character-level GPT as in nanoGPT, text as a data set, and text generation.

pub mod args;
pub mod generate;
pub mod model;
pub mod optimizer;
pub mod output;
pub mod run;
pub mod sampling;
pub mod text;
pub mod train;
