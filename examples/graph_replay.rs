//! A training step that is recorded as a CUDA graph and replayed with new batches and learning rates.
//!
//!     cargo run --release --example graph_replay -- --mode single --device cuda
//!
//! It prints the loss of each step, computed and replayed. Without a CUDA graph, as on a CPU, the step is computed twice.

use burn::tensor::{Device, Tensor, capture};
use burn_ddp::ContextArgs;
use clap::Parser;
use std::{cell::RefCell, process::ExitCode};

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    context: ContextArgs,
}

// ANCHOR: step
/// Tensors that keep their memory in all steps.
struct State {
    batch: RefCell<Tensor<2>>,
    weight: RefCell<Tensor<2>>,
    lr: RefCell<Tensor<2>>,
}

/// Overwrites a tensor in its memory, provided that nothing else refers to the tensor.
fn write(to: &RefCell<Tensor<2>>, values: Tensor<2>) {
    let [rows, columns] = values.dims();
    to.borrow_mut().inplace(|old| old.slice_assign([0..rows, 0..columns], values));
}

/// Forward, backward and SGD.
fn step(state: &State) -> Tensor<1> {
    let weight = state.weight.borrow().clone().autodiff().require_grad();
    let outputs = state.batch.borrow().clone().autodiff().matmul(weight.clone());
    let loss = (outputs - 1.0).powf_scalar(2.0).mean();
    let gradient = weight.grad(&loss.backward()).expect("the loss depends on it");
    let updated = weight.inner() - gradient * state.lr.borrow().clone();
    write(&state.weight, updated);
    loss.inner()
}
// ANCHOR_END: step

/// Initial values. Each tensor has its own memory.
fn initial(device: &Device) -> State {
    let full = |shape: [usize; 2], value: f32| RefCell::new(Tensor::full(shape, value, device));
    State { batch: full([8, 16], 1.0), weight: full([16, 4], 0.01), lr: full([1, 1], 0.1) }
}

fn set_inputs(state: &State, step: usize, device: &Device) {
    let step = step as f32;
    write(&state.batch, Tensor::full([8, 16], 1.0 + step / 8.0, device));
    write(&state.lr, Tensor::full([1, 1], 0.1 / (1.0 + step), device));
}

fn main() -> ExitCode {
    burn_ddp::launch_with(&Args::parse().context, |context| {
        // ANCHOR: replay
        let device = context.device().clone().inner();
        let (computed, recorded) = (initial(&device), initial(&device));
        // Calls the step four times. On CUDA the last call is recorded and not executed.
        let mut graph = capture(&device, || step(&recorded));
        write(&recorded.weight, initial(&device).weight.into_inner());
        println!("CUDA graph: {}", graph.is_hardware());
        for i in 1..=5 {
            set_inputs(&computed, i, &device);
            set_inputs(&recorded, i, &device);
            // SAFETY: `recorded` is alive, and no other thread uses its tensors.
            let replayed = unsafe { graph.replay() }.clone();
            let losses = [step(&computed), replayed].map(|loss| loss.into_scalar::<f32>());
            println!("step {i}  computed {}  replayed {}", losses[0], losses[1]);
        }
        // ANCHOR_END: replay
        Ok(())
    })
}
