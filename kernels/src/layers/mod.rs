//! Burn layers on the CPU kernels of this crate: convolution, ReLU with max-pooling, dropout, the linear layer and
//! SGD.
//!
//! They are functions over Burn's layers, so that a model keeps its types, its parameters and their
//! names. Each uses a kernel where one applies (Flex, f32, and what the function documents), and
//! Burn's operation otherwise: `conv_relu(&self.conv, x)` is `relu(self.conv.forward(x))`.

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
