//! A failing group causes no panic and no wait; the next call returns the first cause.

use super::batches::{Case, apart, device, values};
use crate::common::{Kind, options, world};
use burn::module::Module;
use burn::tensor::{DType, Tensor};
use burn_ddp_collective::{ProcessGroup, ReduceOp, sync_batch_norm::SyncBatchNormConfig};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Forward and backward on a group that fails meanwhile. Returns the error of the next call.
fn step(group: &ProcessGroup, channels: usize) -> String {
    let device = device();
    let sync = SyncBatchNormConfig::new(channels).init(&device).with_group(group);
    let x = Tensor::<3>::ones([2, channels, 3], &device).require_grad();
    let y = sync.forward(x.clone());
    assert_eq!(y.dims(), [2, channels, 3]);
    assert_eq!(values(sync.norm.running_var.value_sync()), vec![1.0; channels], "nothing was learned");
    let grads = y.sum().backward();
    assert!(x.grad(&grads).is_some());
    group.all_reduce(&mut [0f32], ReduceOp::Sum).expect_err("the group failed").to_string()
}

#[test]
fn a_rank_that_leaves_is_named() {
    for kind in [Kind::Thread, Kind::Tcp] {
        let errors = world(kind, 3, options(), |group: ProcessGroup| {
            // All ranks have met; some may still be in the barrier when rank 2 leaves.
            let _ = group.barrier();
            if group.rank() == 2 {
                group.abort("out of memory");
                return String::new();
            }
            step(&group, 4)
        });
        for error in &errors[..2] {
            assert!(error.contains("rank 2") && error.contains("out of memory"), "{kind:?}: {error}");
        }
    }
}

#[test]
fn an_absent_rank_is_named_when_the_deadline_passes() {
    let options = options().timeout(Duration::from_secs(1));
    let errors = world(Kind::Thread, 2, options, |group: ProcessGroup| match group.rank() {
        0 => step(&group, 4),
        _ => {
            let patience = Instant::now() + Duration::from_secs(60);
            while group.failure().is_none() && Instant::now() < patience {
                thread::sleep(Duration::from_millis(10));
            }
            group.failure().expect("rank 0 gave up").to_string()
        }
    });
    for error in errors {
        assert!(error.contains("all_gather #1") && error.contains("rank 1"), "{error}");
    }
}

#[test]
fn different_numbers_of_channels_are_a_mismatch_with_both_sides() {
    let errors = world(Kind::Thread, 2, options(), |group: ProcessGroup| step(&group, 4 + group.rank()));
    for error in errors {
        assert!(error.contains("14 x F32") && error.contains("17 x F32"), "{error}");
    }
}

#[test]
fn inference_and_frozen_modules_never_communicate() {
    let outputs = world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let case = Case { dtype: DType::F32, ..Case::random(2, &[2, 1], &[3, 4], 1) };
        let device = device();
        let sync = case.module(&device).with_group(&group);
        case.train(&sync, group.rank()..group.rank() + 2, &device);
        let mut output = Vec::new();
        if group.rank() == 0 {
            let x = Tensor::<3>::ones([2, 3, 4], &device);
            let valid = sync.valid();
            assert!(valid.group().is_some(), "for when it trains again");
            output = values(valid.forward(x.clone().inner()));
            assert!(apart(&output, &values(sync.norm.valid().forward(x.clone().inner()))) < 1e-6);
            assert_eq!(output, values(sync.clone().freeze().forward(x)));
        }
        group.barrier().expect("rank 1 made no call in between");
        output
    });
    assert_eq!(outputs[0].len(), 24);
}
