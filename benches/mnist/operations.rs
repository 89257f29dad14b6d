//! Each operation of the MNIST network, with burn-ddp's kernels ([`layers`]) and with Burn's.

use crate::timing::processor_seconds;
use anyhow::Result;
use burn::nn::{DropoutConfig, LinearConfig, conv::Conv2dConfig, pool::MaxPool2dConfig};
use burn::tensor::{Device, Distribution, Tensor, activation::relu};
use burn_ddp::layers;
use burn_ddp::process::{console::print_line, timing::median};
use serde::Serialize;

/// Number of measurements of each operation.
const ROUNDS: usize = 11;

#[derive(Serialize)]
struct Row {
    operation: &'static str,
    ours: Cost,
    burn: Cost,
}

/// Medians of processor time; backward computes all gradients that training needs.
#[derive(Clone, Copy, Serialize)]
struct Cost {
    forward_ms: f64,
    backward_ms: f64,
}

pub fn measure(batch: usize, json: bool) -> Result<()> {
    if !json {
        let columns = ["forward", "backward", "Burn's", "backward"];
        print_line(&format!("{:>24} {}", "cpu ms", columns.map(|name| format!("{name:>9}")).join(" ")))?;
    }
    for row in rows(batch) {
        if json {
            print_line(&serde_json::to_string(&row)?)?;
            continue;
        }
        let cells = |cost: Cost| format!("{:>9.2} {:>9.2}", cost.forward_ms, cost.backward_ms);
        print_line(&format!("{:>24} {} {}", row.operation, cells(row.ours), cells(row.burn)))?;
    }
    Ok(())
}

fn rows(batch: usize) -> Vec<Row> {
    let device = Device::flex().autodiff();
    let conv = |channels| Conv2dConfig::new(channels, [3, 3]).init(&device);
    let (conv1, conv2) = (conv([1, 32]), conv([32, 64]));
    let pool = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
    let dropout = DropoutConfig::new(0.25).init();
    let linear = [[9216, 128], [128, 10]].map(|[from, to]| LinearConfig::new(from, to).init(&device));
    let noise = |shape| Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &device);
    // The images need no gradient.
    let images = noise([batch, 1, 28, 28]);
    let [first, second, pooled] = [[batch, 32, 26, 26], [batch, 64, 24, 24], [batch, 64, 12, 12]]
        .map(|shape| noise(shape).require_grad());
    let [wide, narrow] = [9216, 128].map(|width| {
        Tensor::<2>::random([batch, width], Distribution::Normal(0.0, 1.0), &device).require_grad()
    });
    let both = |operation, ours, burn| Row { operation, ours, burn };
    vec![
        both(
            "conv 1 to 32, relu",
            cost(|| layers::conv_relu(&conv1, images.clone())),
            cost(|| relu(conv1.forward(images.clone()))),
        ),
        both(
            "conv 32 to 64",
            cost(|| layers::conv(&conv2, first.clone())),
            cost(|| conv2.forward(first.clone())),
        ),
        both(
            "conv 32 to 64, pooled",
            cost(|| layers::conv_relu_max_pool(&conv2, &pool, first.clone())),
            cost(|| pool.forward(relu(conv2.forward(first.clone())))),
        ),
        both(
            "relu, max-pool 2",
            cost(|| layers::relu_max_pool(&pool, second.clone())),
            cost(|| pool.forward(relu(second.clone()))),
        ),
        both(
            "dropout",
            cost(|| layers::dropout(&dropout, pooled.clone())),
            cost(|| dropout.forward(pooled.clone())),
        ),
        both(
            "linear 9216 to 128",
            cost(|| layers::linear(&linear[0], wide.clone())),
            cost(|| linear[0].forward(wide.clone())),
        ),
        both(
            "linear 128 to 10",
            cost(|| layers::linear(&linear[1], narrow.clone())),
            cost(|| linear[1].forward(narrow.clone())),
        ),
    ]
}

fn cost<const D: usize>(operation: impl Fn() -> Tensor<D>) -> Cost {
    let (mut forwards, mut backwards) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let begun = processor_seconds();
        let output = operation();
        let between = processor_seconds();
        // Starts from ones in the shape of the output, so that only the operation is measured.
        drop(output.backward());
        if round > 0 {
            forwards.push(1e3 * (between - begun));
            backwards.push(1e3 * (processor_seconds() - between));
        }
    }
    Cost { forward_ms: median(forwards), backward_ms: median(backwards) }
}
