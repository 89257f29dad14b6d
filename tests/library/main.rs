//! The library as programs call it, and the files that users bring.

#[path = "../common/mod.rs"]
mod common;
mod damaged_files;
mod http;
mod metrics;
mod mnist_example;
mod own_programs;
mod pictures_and_weights;
mod pytorch_losses;
mod tasks;
mod tracking;
