//! CPU kernels for neural networks over plain `f32` slices.
//!
//! They cover convolution, pooling, dropout, linear layers, batch and layer normalisation, activation functions, losses,
//! LSTM, GRU, attention, SGD, Adam, AdamW and pictures, without a tensor type or autodiff. With the feature `burn`,
//! `layers` wraps them as functions over Burn's layers, `nn` as layers with the names of `burn::nn`, and `optim` as Burn
//! optimizers; with `cuda`, some have CUDA kernels.
//!
//! The kernels are a separate crate because Cargo's profiles are per crate: they are optimised in every
//! build.
//!
//! Results are bit-identical for every number of threads: work is split by images, not by threads, and sums
//! are added in image order. Work runs in the caller's rayon pool.

// Loops over registers and taps index several arrays at once.
#![allow(clippy::needless_range_loop)]
#![warn(missing_docs)]

pub mod activation;
pub mod adam;
mod affine;
pub mod attention;
#[cfg(feature = "burn")]
pub mod autodiff;
pub mod batch_norm;
#[cfg(target_arch = "x86_64")]
mod bf16;
pub mod conv;
pub mod cross_entropy;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod dropout;
pub mod elementwise;
mod exp;
pub mod group_norm;
#[cfg(feature = "burn")]
pub mod host_tensor;
pub mod layer_norm;
#[cfg(feature = "burn")]
pub mod layers;
pub mod leaky_relu;
pub mod linear;
pub mod loss;
#[cfg(feature = "burn")]
pub mod nn;
#[cfg(feature = "burn")]
pub mod optim;
mod parallel;
pub mod pictures;
pub mod pool;
mod product;
#[cfg(feature = "burn")]
pub mod random;
pub mod recurrent;
pub mod sgd;
mod simd;
#[cfg(test)]
mod tests;
