//! Course, chapter "A new project": Burn computes on the CPU.

use burn::tensor::{Device, Tensor};

// ANCHOR: program
fn main() {
    let device = Device::flex();
    let numbers = Tensor::<1>::from_data([1.0, 2.0, 3.0], &device);
    println!("the sum is {}", numbers.sum().into_scalar::<f32>());
}
// ANCHOR_END: program
