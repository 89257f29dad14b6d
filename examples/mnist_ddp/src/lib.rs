//! The MNIST example: pytorch/examples' network, MNIST or a subset of it, augmentation, recipes, and prediction of
//! handwritten digits.

pub mod augment;
pub mod batch;
pub mod data;
pub mod model;
pub mod predict;
pub mod train;
