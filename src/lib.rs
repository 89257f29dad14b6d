//! Data-parallel training for [Burn](https://burn.dev): the same program on one device, on several devices of one
//! process (DP) and on several processes on one or more machines (DDP).
//!
//! Choose how much of the training loop you write; each level uses the one below:
//!
//! | level | you write | you get |
//! |---|---|---|
//! | [`Trainer`] | model, data set | flags, progress, checkpoints and resume, early stopping, TensorBoard, a report |
//! | [`DdpStrategy`](strategy::DdpStrategy) or [`DpStrategy`](strategy::DpStrategy) | a burn-train `Learner` | the same training under burn-train |
//! | [`DistributedDataParallel`] or [`DataParallel`] | the training loop | ranks, devices, sharded loaders, synchronised gradients and BatchNorm |
//! | [process groups](ProcessGroup) | everything | collectives on slices and tensors |
//!
//! A program with a [`Trainer`] is a model with burn-train's `TrainStep` and `InferenceStep`, a data set with a batcher, and
//! this:
//!
//! ```no_run
//! # use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
//! # use burn::module::Module;
//! # use burn::nn::{Linear, LinearConfig, loss::{MseLoss, Reduction}};
//! # use burn::optim::AdamConfig;
//! # use burn::tensor::{Device, Tensor};
//! # use burn::train::{InferenceStep, RegressionOutput, TrainOutput, TrainStep};
//! use burn_ddp::{Trainer, TrainerArgs};
//! use clap::Parser;
//! use std::process::ExitCode;
//!
//! /// Fits a line through points
//! #[derive(Parser)]
//! struct Args {
//!     #[command(flatten)]
//!     trainer: TrainerArgs,
//!     /// Number of points
//!     #[arg(long, default_value_t = 100)]
//!     points: usize,
//! }
//! # #[derive(Module, Debug)]
//! # struct Line { linear: Linear }
//! # #[derive(Clone, Debug)]
//! # struct Points(Tensor<2>, Tensor<2>);
//! # impl Line {
//! #     fn new(device: &Device) -> Self { Line { linear: LinearConfig::new(1, 1).init(device) } }
//! #     fn regress(&self, Points(x, y): Points) -> RegressionOutput {
//! #         let output = self.linear.forward(x);
//! #         RegressionOutput::new(MseLoss::new().forward(output.clone(), y.clone(), Reduction::Mean), output, y)
//! #     }
//! # }
//! # impl TrainStep for Line {
//! #     type Input = Points;
//! #     type Output = RegressionOutput;
//! #     fn step(&self, points: Points) -> TrainOutput<RegressionOutput> {
//! #         let output = self.regress(points);
//! #         TrainOutput::new(self, output.loss.backward(), output)
//! #     }
//! # }
//! # impl InferenceStep for Line {
//! #     type Input = Points;
//! #     type Output = RegressionOutput;
//! #     fn step(&self, points: Points) -> RegressionOutput { self.regress(points) }
//! # }
//! # struct Stack;
//! # impl Batcher<f32, Points> for Stack {
//! #     fn batch(&self, points: Vec<f32>, device: &Device) -> Points {
//! #         let x = Tensor::<1>::from_data(&points[..], device).unsqueeze_dim(1);
//! #         Points(x.clone(), x)
//! #     }
//! # }
//!
//! fn main() -> ExitCode {
//!     burn_ddp::main(|args: &Args| &args.trainer, |context, args| {
//!         let trainer = Trainer::new(context, &args.trainer);
//!         let points = |count| InMemDataset::new((0..count).map(|i| i as f32 / 100.0).collect());
//!         let loaders = trainer.loaders(points(args.points), points(20), Stack);
//!         let model = trainer.init(Line::new);
//!         trainer.fit(model, AdamConfig::new().init(), loaders)?;
//!         Ok(())
//!     })
//! }
//! ```
//!
//! `cargo run -- --epochs 3` then trains on every GPU of the machine, or in two processes on its CPU, and
//! `cargo run -- --help` lists the flags, the program's own first.

pub mod cli;
pub mod config;
pub mod context;
pub mod data;
pub mod device;
pub mod launch;
pub mod nn;
pub mod optim;
pub mod process;
pub mod run;
pub mod trainer;

#[cfg(feature = "cuda")]
pub use collective::cuda;
pub use collective::{
    Communicator, DType, DataParallel, DistributedDataParallel, Element, Error, FileStore, HashStore,
    InitMethod, Loss, Options, ParallelModule, ProcessGroup, ReduceOp, Result, SECRET, Secret, StepGradients,
    StepOptions, StepState, Store, Transport, Work, World,
};
pub use collective::{
    dp, gradient, join, loader, lr, metric, module_state, precision, sampler, scatter, strategy,
    sync_batch_norm, tensor, train_steps,
};
pub use kernels::layers;

pub use config::TrainerArgs;
pub use context::{Context, ContextArgs, launch, launch_threads, launch_threads_with, launch_with};
pub use trainer::{Trained, Trainer, main};
