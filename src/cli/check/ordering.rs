//! Check of the order of computation and communication on a device.
//!
//! Each round computes a long chain of matrix products, all-reduces its result, and overwrites the sum,
//! without waiting on the host. A collective that does not wait for the chain sends old memory. A computation
//! that does not wait for the collective reads or overwrites an incomplete sum. Both change results that are
//! exact otherwise.

use crate::run::tensor_io::values;
use anyhow::{Result, anyhow};
use burn::tensor::{Device, Tensor};
use clap::Args;
use collective::{ProcessGroup, ReduceOp, tensor};
use std::time::{Duration, Instant};

/// Amount of computation between two collectives.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Matrix size, a power of two
    #[arg(long, default_value_t = 1024, value_parser = power_of_two)]
    size: usize,
    /// Minimum duration of a chain of products in milliseconds
    #[arg(long, default_value_t = 50)]
    milliseconds: u64,
    /// Number of chains, each followed by an all-reduce
    #[arg(long, default_value_t = 20, value_parser = crate::context::values::positive)]
    rounds: usize,
}

fn power_of_two(text: &str) -> Result<usize, String> {
    let size: usize = text.parse().map_err(|error| format!("{error}"))?;
    let allowed = 1..=16_384;
    if size.is_power_of_two() && allowed.contains(&size) {
        return Ok(size);
    }
    Err(format!("use a power of two of at most {}", allowed.end()))
}

/// Number of checked matrices on this rank, and descriptions of the wrong ones.
///
/// # Errors
/// If the group or the device fails.
pub fn run(device: &Device, group: &ProcessGroup, load: &Load) -> Result<(usize, Vec<String>)> {
    let size = load.size;
    // A product with this matrix leaves a matrix of equal elements unchanged, without rounding: TF32
    // represents 1 / size.
    let mean = Tensor::<2>::full([size, size], 1.0 / size as f32, device);
    let products = group.all_gather_object(&calibrate(&mean, load)?)?.into_iter().max().unwrap_or(1);
    let ranks = group.world_size();
    let mut differences = Vec::new();
    for round in 0..load.rounds {
        let start = (round % 7 + group.rank() + 1) as f32;
        let chain = chain(&mean, start, products);
        let sum = tensor::all_reduce(chain, group, ReduceOp::Sum)?;
        let expected = (0..ranks).map(|rank| (round % 7 + rank + 1) as f32).sum::<f32>();
        differences.push((sum.clone() - expected).abs().max());
        // Computed in place, because nothing else holds the sum; the next chain reuses its memory.
        let overwritten = sum * 0.0 - 1.0;
        differences.push((overwritten + 1.0).abs().max());
    }
    let (checks, mut wrong) = (differences.len(), Vec::new());
    for (number, difference) in differences.into_iter().enumerate() {
        let difference: Vec<f32> = values(difference).map_err(|error| anyhow!("{error}"))?;
        // True for NaN, too.
        if difference != [0.0] {
            let what = if number % 2 == 0 { "the sum" } else { "the overwritten sum" };
            wrong.push(format!("{what} of round {} is off by {difference:?}", number / 2));
        }
    }
    Ok((checks, wrong))
}

fn chain(mean: &Tensor<2>, start: f32, products: usize) -> Tensor<2> {
    (0..products).fold(mean.ones_like() * start, |matrix, _| matrix.matmul(mean.clone()))
}

/// Number of products that take the requested time.
fn calibrate(mean: &Tensor<2>, load: &Load) -> Result<usize> {
    let time = |products: usize| -> Result<Duration> {
        let started = Instant::now();
        let _: Vec<f32> = values(chain(mean, 1.0, products).max()).map_err(|error| anyhow!("{error}"))?;
        Ok(started.elapsed())
    };
    // The first run compiles the kernels.
    time(2)?;
    let wanted = Duration::from_millis(load.milliseconds);
    let mut products = 1;
    while products < 1 << 16 && time(products)? < wanted {
        products *= 2;
    }
    Ok(products)
}
