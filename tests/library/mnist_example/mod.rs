//! The library of the MNIST example, and downloads, which it uses.

mod augment;
mod batch;
mod data;
mod digit;
mod downloads;
mod idx;
mod model;
mod small;
