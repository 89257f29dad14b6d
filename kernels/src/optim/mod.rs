//! Optimizers with the names, settings and records of [`burn::optim`], whose steps are one pass over a parameter on the CPU
//! and one launch for many parameters with CUDA. What is not replaced here is Burn's own.

mod adam;
mod sgd;
mod together;

pub use adam::{Adam, AdamConfig, AdamW, AdamWConfig};
pub use burn::optim::*;
pub use sgd::{Sgd, SgdConfig};
pub use together::together;
