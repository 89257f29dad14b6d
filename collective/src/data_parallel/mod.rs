//! Data parallelism in one process with a thread per device, as PyTorch's `nn.DataParallel`.
//!
//! [`DataParallel`](crate::DataParallel) computes the loss of each part of a batch on its device. For a
//! [`ParallelStep`], [`Replicas::step`] gathers the outputs of all parts on the output device and computes the loss of
//! the whole batch there; the gradient of the outputs is scattered to the replicas, which run their
//! backward passes at the same time. In both, gradients are added up on the main device, where the
//! optimizer works, and the next step starts with the new parameters.
//!
//! Unlike in PyTorch, replicas persist between steps, and SyncBatchNorm works. Each replica keeps its own running
//! statistics; those of the main device are the module's.
//!
//! Copies between devices are Burn's. CubeCL makes those between NVIDIA GPUs with NCCL if the linker finds it as
//! `libnccl.so`, else through host memory. Its random numbers come from one generator for all GPUs of the
//! process, which is seeded once before every step, on the thread that trains; the order in which the threads of the
//! replicas draw from it is not fixed, so two runs with dropout on several GPUs differ. On the CPU each
//! replica has a stream of random numbers.

mod exchange;
mod gather;
mod parts;
mod replicas;
mod scatter;
mod worker;

pub use replicas::Replicas;
pub use scatter::{Outputs, Scatter, shares};

use crate::{device_error, transport::nccl::DeviceSite};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn::train::TrainStep;
use std::sync::Arc;

/// A module whose training step can be divided at its outputs: the forward pass runs on every
/// device, the criterion on one.
pub trait ParallelStep: TrainStep<Input: Scatter> + Module + 'static {
    /// Outputs of the forward pass.
    type Outputs: Outputs;
    /// The forward pass over a part of the batch.
    fn forward_part(&self, part: Self::Input) -> Self::Outputs;
    /// The loss `[1]` of the whole batch, and what metrics see of it.
    fn criterion(&self, outputs: Self::Outputs, batch: Self::Input) -> (Tensor<1>, Self::Output);
}

/// How the gradients of the replicas are reduced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DpReduce {
    /// One after the other into those of the main device.
    #[default]
    Main,
    /// In pairs, pairs of pairs, and so on: log₂ n steps, half the transfers between neighbours.
    Tree,
    /// In one all-reduce of all of them, NCCL's between NVIDIA GPUs.
    AllReduce,
}

/// A device and its name in errors.
pub type NamedDevice = (Device, String);

/// Devices of the replicas, and how they communicate.
#[derive(Clone, Debug)]
pub struct DataParallelConfig {
    /// The first holds the module and its optimizer.
    pub devices: Vec<NamedDevice>,
    /// Which of them gathers the outputs and computes the loss, as a position in `devices`.
    pub output: usize,
    /// How gradients come together on the first.
    pub reduce: DpReduce,
    /// The devices as NCCL sees them, for [`DpReduce::AllReduce`]; none to go through host memory.
    pub sites: Vec<Arc<dyn DeviceSite>>,
    /// Compute threads of each replica on the CPU.
    pub threads: usize,
    /// Whether the module's [`SyncBatchNorm`](crate::sync_batch_norm::SyncBatchNorm)s take their
    /// statistics over all replicas.
    pub sync_batch_norm: bool,
}

impl DataParallelConfig {
    /// Replicas on `devices`, the first of which holds the module and gathers the outputs. The CPU's threads are
    /// divided between replicas on the CPU.
    pub fn new(devices: &[Device]) -> Self {
        let name = |(number, device): (usize, &Device)| {
            (device.clone(), format!("{} (replica {number})", device_error::name(device)))
        };
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self {
            devices: devices.iter().enumerate().map(name).collect(),
            output: 0,
            reduce: DpReduce::default(),
            sites: Vec::new(),
            threads: (cores / devices.len().max(1)).max(1),
            sync_batch_norm: false,
        }
    }
}
