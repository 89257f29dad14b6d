//! Operations of our own for Burn's CPU backend, where its own cost most of a training step:
//! convolution, ReLU with max-pooling, dropout, the linear layer, the optimizer. The crate [`kernels`] computes them.
//!
//! They are functions over Burn's layers, so that a model keeps its types, its parameters and their
//! names. Each takes our kernel where it is covered (Flex, f32, and what the function says), and
//! Burn's operation otherwise: `conv_relu(&self.conv, x)` is `relu(self.conv.forward(x))`. Once
//! Burn's are as fast, write that again, and delete this folder and that crate.

mod conv;
mod dropout;
mod linear;
mod pool;
mod sgd;

pub use conv::{conv, conv_relu, conv_relu_max_pool};
pub use dropout::dropout;
pub use linear::linear;
pub use pool::relu_max_pool;
pub use sgd::Sgd;
