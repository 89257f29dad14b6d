//! The picture example: a ResNet (He et al. 2015, arXiv 1512.03385) on pictures in one folder per class.

pub mod data;
pub mod model;
pub mod shapes;
pub mod train;
