//! Burn layers on the CPU kernels of this crate: convolution, ReLU with max-pooling, dropout, linear and SGD.
//!
//! They are functions over Burn's layers, so that a model keeps its types, parameters and parameter names:
//! `conv_relu(&self.conv, x)` computes `relu(self.conv.forward(x))`. Each function uses a kernel where one
//! applies (Flex, f32, and the conditions in its documentation) and Burn's operation otherwise.

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
