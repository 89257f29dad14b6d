//! The picture example: a ResNet as in He et al. 2015 for small pictures, read from one folder per class.

pub mod data;
pub mod model;
pub mod shapes;
pub mod train;
