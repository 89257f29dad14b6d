//! CUDA kernels for tensors of Burn: optimizer steps, cross-entropy and layer normalisation with few launches.

mod block;
mod cross_entropy;
mod layer_norm;
mod many;
mod tensors;
mod updates;

pub(crate) use cross_entropy::cross_entropy;
pub(crate) use layer_norm::layer_norm;
pub use many::ManyTensors;
pub use tensors::{FusionClient, register};
pub(crate) use updates::Updates;
