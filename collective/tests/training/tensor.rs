//! Forward and backward of tensor collectives, compared with one rank that has all data.

use crate::{
    common::{Kind, options, world},
    support::{device, values},
};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use burn_ddp_collective::{ProcessGroup, ReduceOp, tensor};

/// `rows` × 2 values that differ between ranks.
fn input(rank: usize, rows: usize) -> Tensor<2> {
    let values: Vec<f32> = (0..rows * 2).map(|i| (i as f32 + 1.0) * 0.25 - rank as f32).collect();
    Tensor::from_data(TensorData::new(values, [rows, 2]), &device())
}

/// Factor of each rank's output, so that gradients differ between ranks.
fn weight(rank: usize) -> f32 {
    [0.5, -2.0, 3.0][rank]
}

#[test]
fn all_reduce_and_its_gradient() {
    for kind in [Kind::Thread, Kind::Tcp] {
        for (op, scale) in [(ReduceOp::Sum, 1.0), (ReduceOp::Mean, 1.0 / 3.0)] {
            let results = world(kind, 3, options(), |group: ProcessGroup| {
                let x = input(group.rank(), 3).require_grad();
                let y = tensor::all_reduce(x.clone(), &group, op).expect("all_reduce");
                let grads = (y.clone() * weight(group.rank())).sum().backward();
                (values(y), values(x.grad(&grads).expect("a gradient")))
            });
            let sum = values((0..3).map(|r| input(r, 3)).reduce(|a, b| a + b).expect("three"));
            for (y, grad) in results {
                assert!(y.iter().zip(&sum).all(|(y, sum)| (y - sum * scale).abs() < 1e-6), "{y:?}");
                // d/dx of the sum over ranks of w·all_reduce(x) is the sum of the weights.
                assert!(grad.iter().all(|g| (g - 1.5 * scale).abs() < 1e-6), "{grad:?}");
            }
        }
    }
}

#[test]
fn minimum_and_maximum_are_constants_to_autodiff() {
    let results = world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let x = input(group.rank(), 1).require_grad();
        let y = tensor::all_reduce(x.clone(), &group, ReduceOp::Max).expect("all_reduce");
        let grads = (y.clone() + x.clone()).sum().backward();
        // Only a tensor without a graph can become a leaf.
        (values(y.require_grad()), values(x.grad(&grads).expect("a gradient")))
    });
    for (y, grad) in results {
        assert_eq!(y, [0.25, 0.5]);
        assert_eq!(grad, [1.0, 1.0]);
    }
}

#[test]
fn all_gather_of_unequal_lengths_and_its_gradient() {
    // Rank 0 has no rows.
    let results = world(Kind::Thread, 3, options(), |group: ProcessGroup| {
        let x = input(group.rank(), group.rank()).require_grad();
        let y = tensor::all_gather(x.clone(), &group).expect("all_gather");
        let grads = (y.clone() * weight(group.rank())).sum().backward();
        (y.dims(), values(y), values(x.grad(&grads).expect("a gradient")))
    });
    let wanted: Vec<f32> = (0..3).flat_map(|r| values(input(r, r))).collect();
    for (rank, (dims, y, grad)) in results.into_iter().enumerate() {
        assert_eq!((dims, y), ([3, 2], wanted.clone()));
        assert_eq!(grad, vec![1.5; 2 * rank]);
    }
}

#[test]
fn all_gather_of_different_widths_is_an_error_on_all_ranks() {
    let errors = world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let x = Tensor::<2>::zeros([1, 2 + group.rank()], &device());
        tensor::all_gather(x, &group).expect_err("different widths").to_string()
    });
    assert!(errors.iter().all(|e| e.contains("[1, 2]") && e.contains("[1, 3]")), "{errors:?}");
}

#[test]
fn reduce_scatter_keeps_near_equal_parts_and_gathers_gradients() {
    let results = world(Kind::Thread, 3, options(), |group: ProcessGroup| {
        let x = input(group.rank(), 4).require_grad();
        let y = tensor::reduce_scatter(x.clone(), &group, ReduceOp::Mean).expect("reduce_scatter");
        let grads = (y.clone() * weight(group.rank())).sum().backward();
        (values(y), values(x.grad(&grads).expect("a gradient")))
    });
    let mean = values((0..3).map(|r| input(r, 4)).reduce(|a, b| a + b).expect("three") / 3.0);
    let parts: Vec<f32> = results.iter().flat_map(|(y, _)| y.clone()).collect();
    assert!(parts.iter().zip(&mean).all(|(a, b)| (a - b).abs() < 1e-6), "{parts:?}");
    assert_eq!(results.iter().map(|(y, _)| y.len()).collect::<Vec<_>>(), [4, 2, 2]);
    let wanted = [0.5, 0.5, 0.5, 0.5, -2.0, -2.0, 3.0, 3.0].map(|w| w / 3.0);
    for (_, grad) in results {
        assert!(grad.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6), "{grad:?}");
    }
}

#[test]
fn broadcast_sums_gradients_on_the_root() {
    let results = world(Kind::Thread, 3, options(), |group: ProcessGroup| {
        let x = input(group.rank(), 2).require_grad();
        let y = tensor::broadcast(x.clone(), &group, 1).expect("broadcast");
        let grads = (y.clone() * weight(group.rank())).sum().backward();
        (values(y), values(x.grad(&grads).expect("a gradient")))
    });
    for (rank, (y, grad)) in results.into_iter().enumerate() {
        assert_eq!(y, values(input(1, 2)));
        assert_eq!(grad, vec![if rank == 1 { 1.5 } else { 0.0 }; 4]);
    }
}

#[test]
fn every_float_type_is_supported() {
    for dtype in [FloatDType::F64, FloatDType::F16, FloatDType::BF16] {
        let results = world(Kind::Thread, 2, options(), |group: ProcessGroup| {
            let x = input(group.rank(), 2).cast(dtype);
            let y = tensor::all_reduce(x, &group, ReduceOp::Sum).expect("all_reduce");
            (y.dtype(), values(y))
        });
        let wanted = values(input(0, 2) + input(1, 2));
        assert!(results.iter().all(|(d, y)| *d == dtype.into() && *y == wanted), "{results:?}");
    }
}

#[test]
fn checkpointing_never_repeats_a_collective() {
    let results = world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let device = Device::flex().autodiff().gradient_checkpointing();
        let x = Tensor::<2>::from_data(input(group.rank(), 2).into_data(), &device).require_grad();
        let y = tensor::all_reduce(x.clone().exp(), &group, ReduceOp::Sum).expect("all_reduce");
        let grads = y.tanh().exp().sum().backward();
        let grad = values(x.grad(&grads).expect("a gradient"));
        // One call forward and one backward, so that this call matches the other rank's.
        group.barrier().expect("in step");
        grad
    });
    assert!(results.iter().flatten().all(|g| g.is_finite()));
}

#[test]
fn a_failed_group_is_an_error_not_zeros() {
    let errors = world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        if group.rank() == 1 {
            group.abort("enough");
            return String::new();
        }
        tensor::all_reduce(input(0, 1), &group, ReduceOp::Sum).expect_err("rank 1 is gone").to_string()
    });
    assert!(errors[0].contains("rank 1") && errors[0].contains("enough"), "{errors:?}");
}
