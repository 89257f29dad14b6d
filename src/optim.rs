//! Optimizers with the names of [`burn::optim`], which are fast on a CPU: see [`kernels::optim`].

pub use kernels::optim::*;
