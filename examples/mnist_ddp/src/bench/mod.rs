//! `mnist_ddp bench`: training speed of the MNIST network.

mod operations;
mod overlap;
mod step;
mod wrapper;

use crate::{
    batch::{ImageDataset, Sample},
    data::Dataset,
};
use anyhow::Result;
use burn::data::dataset::{self, DatasetError};
use clap::Subcommand;
use std::process::ExitCode;

/// The benchmarks.
#[derive(Subcommand, Clone, Debug)]
pub enum Bench {
    /// Measure the overlap of communication over a slow link with backward
    Overlap(overlap::Overlap),
    /// Measure the time of a training step by stage or operation
    Step(step::Step),
    /// Measure the overhead of DDP with one rank over a plain Burn loop
    Wrapper(wrapper::Wrapper),
}

/// Runs the benchmark and starts the ranks if no launcher did.
///
/// # Errors
/// If a rank cannot be started, or a result is wrong.
pub fn run(bench: &Bench) -> Result<ExitCode> {
    match bench {
        Bench::Overlap(bench) => overlap::run(bench),
        Bench::Step(bench) => step::run(bench),
        Bench::Wrapper(bench) => wrapper::run(bench),
    }
}

/// Images of MNIST, repeated so that one epoch has as many as a benchmark needs.
struct Repeated {
    images: ImageDataset,
    count: usize,
}

impl Repeated {
    fn new(count: usize) -> Result<Self> {
        Ok(Self { images: ImageDataset(Dataset::subset([None, Some(1)])?.train), count })
    }
}

impl dataset::Dataset<Sample> for Repeated {
    fn get(&self, index: usize) -> Result<Sample, DatasetError> {
        self.images.get(index % self.images.len())
    }

    fn len(&self) -> usize {
        self.count
    }
}
