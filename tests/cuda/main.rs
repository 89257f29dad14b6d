//! `--device cuda` without a GPU: CubeCL's kernels are executed by the stand-ins for libcuda and libnvrtc in
//! `tests/cuda_stand_in`, DDP by the stand-in for NCCL. Losses are compared with the CPU's and PyTorch's.
#![cfg(all(feature = "cuda", target_os = "linux", target_arch = "x86_64"))]

mod auto_batch;
#[path = "../common/mod.rs"]
mod common;
mod counts;
mod faults;
mod inputs;
mod kernel_archive;
mod kernel_cache;
mod kernel_store;
mod loader;
mod loggers;
mod mistakes;
mod ordering;
mod overlap;
mod precision;
mod stand_in;
mod streams;
mod tf32;
mod toolkit;
mod trajectories;
mod tuning;
