//! Training under burn-train: the strategies that run its epochs, metrics and learning rates.

pub mod lr;
pub mod metric;
pub mod strategy;
