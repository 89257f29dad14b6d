//! Distribution of a data set over the ranks.

pub mod join;
pub mod loader;
pub mod sampler;
