//! Data-parallel training for [Burn](https://burn.dev): the same code on one device, on many
//! devices in one process and on many processes across machines.
//!
//! This crate is the trainer: command line, MNIST model and data, runs and their folders, and the
//! launcher that starts one process per device. What makes replicas act as one is the crate
//! [`collective`], which knows nothing of the above.

pub mod accelerator;
pub mod allocator;
pub mod answers;
pub mod augment;
pub mod batch;
pub mod bench;
pub mod check;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod config_file;
pub mod confusion;
pub mod console;
pub mod cpu;
pub mod data;
pub mod data_plane;
pub mod device;
pub mod devices;
pub mod doctor;
pub mod durable;
pub mod evaluation;
pub mod exit;
pub mod gradients;
pub mod launch;
pub mod misclassified;
pub mod model;
pub mod optimisation;
pub mod output;
pub mod png;
pub mod predict;
pub mod quiet;
pub mod recipe;
pub mod replicas;
pub mod report;
pub mod run_config;
pub mod run_folder;
pub mod run_log;
pub mod run_tables;
pub mod stop;
pub mod tensorboard;
pub mod train;
pub mod weights;
pub mod world;
