//! The picture example: a ResNet as in He et al. 2015 for small pictures, read from one folder per class.

pub mod args;
pub mod batch;
pub mod model;
pub mod run;
pub mod shapes;
pub mod train;
