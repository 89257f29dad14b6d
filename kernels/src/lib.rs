//! Operations of neural networks on a CPU, over plain slices of f32: convolution, ReLU with
//! max-pooling, dropout, linear layers, the passes of batch normalisation, and a step of SGD. They use no tensor
//! type and no autodiff. With the feature `burn`, `layers` makes operations of Burn of them.
//!
//! This is a crate because Cargo's profiles are per crate: it is optimised and without debug assertions
//! in every build, as a training program is slow without.
//!
//! Results are the same bits at every number of threads: work is cut by images, never by threads, and
//! sums are added in the order of the images. Threads are those of the rayon pool the caller is in.

// Loops over registers and taps go by number: that is how the kernels think.
#![allow(clippy::needless_range_loop)]
#![warn(missing_docs)]

pub mod batch_norm;
pub mod conv;
pub mod dropout;
#[cfg(feature = "burn")]
pub mod host_tensor;
#[cfg(feature = "burn")]
pub mod layers;
pub mod linear;
mod parallel;
pub mod pool;
#[cfg(feature = "burn")]
pub mod random;
pub mod sgd;
mod simd;
#[cfg(test)]
mod tests;
