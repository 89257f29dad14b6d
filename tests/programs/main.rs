//! The programs as users run them: processes with flags, files and signals.
//!
//! One program, because each would link the whole library.

mod agreement;
mod char_gpt;
mod checkpoints;
#[path = "../common/mod.rs"]
mod common;
mod doctor;
mod failures;
mod fine_tuning;
mod gan;
mod gpu_check;
mod image_folder;
mod launch;
mod launchers;
mod launching;
mod live_recovery;
mod local_sgd;
mod metrics;
mod nodes;
mod pretrained;
mod recipes;
mod rendezvous;
mod reports;
mod restarts;
mod sharded_optimizer;
mod synchronisation;
mod traces;
mod training;
mod validation;
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
mod vulkan;
mod weight_average;
