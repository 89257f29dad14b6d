//! Benchmarks of the MNIST network: training steps by stage and operation, overlap, and the overhead of DDP.
//!
//! ```text
//! cargo run --example mnist_bench -- step --ranks 2    # a training step of two ranks by stage
//! cargo run --example mnist_bench -- overlap           # over an artificially slow link
//! cargo run --example mnist_bench -- wrapper           # compared with a plain Burn loop
//! ```

mod operations;
mod overlap;
mod step;
mod timing;
mod wrapper;

use burn::data::dataset::{Dataset as BurnDataset, DatasetError};
use burn_ddp::process::exit;
use clap::Parser;
use mnist::{
    batch::{ImageDataset, Sample},
    data::Dataset,
};
use std::process::ExitCode;

burn_ddp::global_allocator!();

/// Measure training of the MNIST network
#[derive(Parser)]
#[command(version)]
enum Bench {
    /// Measure the overlap of communication over a slow link with backward
    Overlap(overlap::Overlap),
    /// Measure the time of a training step by stage or operation
    Step(step::Step),
    /// Measure the overhead of DDP with one rank over a plain Burn loop
    Wrapper(wrapper::Wrapper),
}

fn main() -> ExitCode {
    exit::report(match Bench::parse() {
        Bench::Overlap(bench) => overlap::run(&bench),
        Bench::Step(bench) => step::run(&bench),
        Bench::Wrapper(bench) => wrapper::run(&bench),
    })
}

/// Images of MNIST, repeated so that one epoch has as many as a benchmark needs.
struct Repeated {
    images: ImageDataset,
    count: usize,
}

impl Repeated {
    fn new(count: usize) -> anyhow::Result<Self> {
        Ok(Self { images: ImageDataset(Dataset::subset([None, Some(1)])?.train), count })
    }
}

impl BurnDataset<Sample> for Repeated {
    fn get(&self, index: usize) -> Result<Sample, DatasetError> {
        self.images.get(index % self.images.len())
    }

    fn len(&self) -> usize {
        self.count
    }
}
