//! Clipping by the global norm: equal to PyTorch's, and correct where PyTorch's norm overflows.

use super::{device, flat, rows, worst};
use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use burn_ddp_collective::gradient::clip_by_global_norm;

/// Parameters with given gradients.
#[derive(Module, Debug)]
struct Pair {
    first: Param<Tensor<1>>,
    second: Param<Tensor<1>>,
}

/// Clips both gradients; returns them concatenated, and the norm before clipping.
fn clip(first: &[f32], second: &[f32], max_norm: f64) -> (Vec<f32>, f64) {
    let plain = Device::flex();
    let [first, second] = [first, second].map(|grad| Tensor::<1>::from_floats(grad, &plain));
    let device = device();
    let param = |grad: &Tensor<1>| Param::from_tensor(Tensor::zeros(grad.dims(), &device));
    let pair = Pair { first: param(&first), second: param(&second) };
    let mut grads = GradientsParams::new();
    grads.register(pair.first.id, first);
    grads.register(pair.second.id, second);
    let (grads, norm) = clip_by_global_norm(grads, &pair, max_norm).expect("clip");
    (flat(&grads, &pair), norm)
}

fn assert_clipped(first: &[f32], second: &[f32], max_norm: f64, wanted: &[f32], wanted_norm: f64) {
    let (clipped, norm) = clip(first, second, max_norm);
    assert!((norm - wanted_norm).abs() <= 1e-6 * wanted_norm, "{norm} is not {wanted_norm}");
    assert_eq!(clipped.len(), wanted.len());
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * b.abs();
    assert!(clipped.iter().zip(wanted).all(close), "{clipped:?} are not {wanted:?}");
}

#[test]
fn the_global_norm_is_clipped_as_pytorch_does() {
    let device = device();
    let net = super::Net::new(&device);
    let grads = || net.grads(rows(5, 4, &device));
    let before = flat(&grads(), &net);
    let norm = before.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    let (same, seen) = clip_by_global_norm(grads(), &net, norm * 1.01).expect("clip");
    assert!((seen - norm).abs() < 1e-6 * norm, "{seen} against {norm}");
    assert_eq!(flat(&same, &net), before);
    let max = norm / 3.0;
    let (clipped, seen) = clip_by_global_norm(grads(), &net, max).expect("clip");
    assert!((seen - norm).abs() < 1e-6 * norm);
    let wanted: Vec<f32> = before.iter().map(|g| (f64::from(*g) * max / (norm + 1e-6)) as f32).collect();
    assert!(worst(&flat(&clipped, &net), &wanted) < 1e-7);
    // Reference: torch 2.15's `clip_grad_norm_` of [3, 4] to 1.
    assert_clipped(&[3.0], &[4.0], 1.0, &[0.599_999_9, 0.799_999_83], 5.0);
}

/// PyTorch's norm is infinite for these values, and its clipped gradients are 0.
#[test]
fn gradients_whose_norm_overflows_f32_are_clipped() {
    assert_clipped(&[3e30], &[4e30], 1.0, &[0.6, 0.8], 5e30);
    assert_clipped(&[3e30, -1e-30], &[4e30], 10.0, &[6.0, 0.0, 8.0], 5e30);
    let half = 0.5f32.sqrt();
    assert_clipped(&[3e38], &[-3e38], 1.0, &[half, -half], 3e38 * 2f64.sqrt());
    // A factor below f32's smallest normal number.
    assert_clipped(&[3e38], &[-3e38], 1e-3, &[1e-3 * half, -1e-3 * half], 3e38 * 2f64.sqrt());
    // Each square is finite, but their sum is not.
    let many = vec![1e18; 1 << 10];
    assert_clipped(&many, &[0.0], 32.0, &[vec![1.0; 1 << 10], vec![0.0]].concat(), 32e18);
    // Gradients below such a norm are not clipped.
    assert_clipped(&[3e30], &[4e30], 6e30, &[3e30, 4e30], 5e30);
}

/// Reference: torch 2.15's `clip_grad_norm_`, which gives 0 for a factor of 0 and NaN for infinity times 0.
#[test]
fn non_finite_gradients_are_clipped_as_in_pytorch() {
    let (clipped, norm) = clip(&[f32::INFINITY], &[1.0], 1.0);
    assert!(norm.is_infinite() && clipped[0].is_nan() && clipped[1] == 0.0, "{norm}: {clipped:?}");
    let (clipped, norm) = clip(&[f32::NAN], &[1.0], 1.0);
    assert!(norm.is_nan() && clipped.iter().all(|grad| grad.is_nan()), "{norm}: {clipped:?}");
}
