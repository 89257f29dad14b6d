//! Data parallelism in one process with a thread per device, as PyTorch's `nn.DataParallel`.
//!
//! [`DataParallel`](crate::DataParallel) computes the loss of each part of a batch on its device. For a
//! [`ParallelStep`], [`Replicas::step`] gathers the outputs of all parts on the output device and computes the loss of
//! the whole batch there; the gradient of the outputs is scattered to the replicas, which run backward
//! concurrently. In both cases the gradients are added up on the main device, where the optimizer runs, and the next
//! step starts with the updated parameters.
//!
//! Unlike in PyTorch, replicas persist between steps, and SyncBatchNorm works. Each replica keeps its own running
//! statistics; those of the main device are the module's.
//!
//! Burn copies tensors between devices. Between NVIDIA GPUs CubeCL does so with NCCL if the linker finds
//! `libnccl.so`, otherwise through host memory.
//!
//! CubeCL has one random number generator for all GPUs of the process. It is seeded before every step, but the order
//! in which the replicas' threads draw from it is not fixed, so that two runs with dropout on several GPUs differ. On
//! the CPU each replica has its own random stream.

mod exchange;
mod gather;
mod parts;
mod replicas;
mod scatter;
mod worker;

pub(crate) use gather::forward;
pub use replicas::Replicas;
pub(crate) use scatter::cast;
pub use scatter::{Outputs, Scatter, shares};

use crate::{device_error, transport::nccl::DeviceSite};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn::train::TrainStep;
use std::sync::Arc;

/// A module whose training step can be split after the forward pass.
///
/// In data parallelism, the forward pass runs on every device and the criterion on one. With a
/// [`Precision`](crate::precision::Precision) other than f32, also on one device, the forward pass runs in 16 bits and
/// the criterion in f32. The module needs no code for either.
pub trait ParallelStep: TrainStep<Input: Scatter> + Module + 'static {
    /// Outputs of the forward pass.
    type Outputs: Outputs;
    /// Computes the forward pass over a part of the batch.
    ///
    /// In 16 bits, the parameters and the tensors that [`Scatter::cast`] casts have that type.
    fn forward_part(&self, part: Self::Input) -> Self::Outputs;
    /// Computes the loss `[1]` of the whole batch and the output for metrics.
    ///
    /// The outputs and the parameters are f32, and the batch is not cast.
    fn criterion(&self, outputs: Self::Outputs, batch: Self::Input) -> (Tensor<1>, Self::Output);
}

/// Implements burn-train's `TrainStep` and `InferenceStep` for a [`ParallelStep`](crate::dp::ParallelStep).
///
/// A step is the forward pass and the criterion. `train_steps!(Net: Batch => Classification)` names the model, its batch
/// and the output for metrics.
#[macro_export]
macro_rules! train_steps {
    ($model:ty: $batch:ty => $output:ty) => {
        impl burn::train::TrainStep for $model {
            type Input = $batch;
            type Output = $output;
            fn step(&self, batch: $batch) -> burn::train::TrainOutput<$output> {
                use $crate::dp::ParallelStep;
                let (loss, output) = self.criterion(self.forward_part(batch.clone()), batch);
                burn::train::TrainOutput::new(self, loss.backward(), output)
            }
        }
        impl burn::train::InferenceStep for $model {
            type Input = $batch;
            type Output = $output;
            fn step(&self, batch: $batch) -> $output {
                use $crate::dp::ParallelStep;
                self.criterion(self.forward_part(batch.clone()), batch).1
            }
        }
    };
}

/// How the gradients of the replicas are reduced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DpReduce {
    /// Sequentially, into those of the main device.
    #[default]
    Main,
    /// Pairwise over a binary tree: log₂ n steps, with half of the transfers between neighbours.
    Tree,
    /// In one all-reduce, by NCCL between NVIDIA GPUs.
    AllReduce,
}

/// A device and its name in errors.
pub type NamedDevice = (Device, String);

/// Devices of the replicas, and how they communicate.
#[derive(Clone, Debug)]
pub struct DataParallelConfig {
    /// The devices; the first holds the module and its optimizer.
    pub devices: Vec<NamedDevice>,
    /// Index in `devices` of the device that gathers the outputs and computes the loss.
    pub output: usize,
    /// The reduction of the gradients.
    pub reduce: DpReduce,
    /// NCCL devices for [`DpReduce::AllReduce`]; empty to reduce in host memory.
    pub sites: Vec<Arc<dyn DeviceSite>>,
    /// Number of compute threads of each CPU replica.
    pub threads: usize,
    /// Whether [`SyncBatchNorm`](crate::sync_batch_norm::SyncBatchNorm) layers synchronise their statistics over all
    /// replicas.
    pub sync_batch_norm: bool,
}

impl DataParallelConfig {
    /// Replicas on `devices`, the first of which holds the module and gathers the outputs.
    ///
    /// CPU replicas share the CPU's threads evenly.
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
