//! CUDA kernels for tensors of Burn: optimizer steps and layers with few launches.

mod attention;
mod block;
mod convolution;
mod cross_entropy;
mod layer_norm;
mod many;
mod queue;
mod relu;
mod tensors;
mod updates;

pub(crate) use attention::causal_attention;
pub(crate) use convolution::conv2d;
pub(crate) use cross_entropy::cross_entropy;
pub(crate) use layer_norm::layer_norm;
pub use many::{ManyTensors, split};
pub use queue::{after_queued, prepare};
pub(crate) use relu::relu;
pub use tensors::{FusionClient, register, strided_operation};
pub(crate) use updates::{Settings, Updates};
