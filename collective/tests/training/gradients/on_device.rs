//! What differs with buckets in device memory.
//!
//! The device is emulated; its tensors are in host memory.

use super::{Net, Place, device, rows, with_reducer_at};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn_ddp_collective::{
    DistributedDataParallel, Error, ProcessGroup, Result,
    gradient::{BucketSizes, Reducer, ReducerOptions},
    loader::ShardedBatch,
};

fn on_devices<R: Send>(body: impl Fn(Net, &ProcessGroup) -> R + Sync) -> Vec<R> {
    with_reducer_at(Place::Device, 3, Net::new, ReducerOptions::default, |net, _, group| body(net, &group))
}

#[test]
fn without_overlap_there_is_one_bucket_and_hooks_run_on_the_host() {
    on_devices(|net, group| {
        let choose = |hook| ReducerOptions {
            buckets: BucketSizes { first: 4, rest: 1 << 20 },
            hook,
            ..ReducerOptions::default()
        };
        let alone = ReducerOptions { overlap: false, ..choose(None) };
        assert_eq!(Reducer::new(&net, group, alone).expect("a reducer").buckets(), 1);
        assert_eq!(Reducer::new(&net, group, choose(None)).expect("a reducer").buckets(), 2);
        let half = std::sync::Arc::new(burn_ddp_collective::gradient::HalfPrecision::Bf16);
        let hooked = Reducer::new(&net, group, choose(Some(half))).expect("a reducer");
        assert!(!hooked.on_device() && hooked.buckets() > 1);
    });
}

/// Runs three steps of a wrapped layer. In step `number`, rank 1 runs a second backward pass.
fn with_a_second_pass(number: usize) -> Vec<Result<Option<String>>> {
    on_devices(|_, group| {
        let layer: Linear = LinearConfig::new(4, 2).init(&device());
        let mut model = DistributedDataParallel::new(layer, group)?;
        let mut optimizer = SgdConfig::new().init();
        for step in 1..=3 {
            let batch = ShardedBatch::whole(rows(3, 4, &device()), 3);
            let (_, gradients) = model.backward(batch, |layer, x| {
                if step == number && group.rank() == 1 {
                    let _ = layer.forward(x.clone()).mean().backward();
                }
                layer.forward(x).mean()
            })?;
            model.step(&mut optimizer, 0.1, gradients)?;
        }
        model.synchronize()?;
        Ok(model.fallback().map(String::from))
    })
}

#[test]
fn a_first_step_that_one_rank_must_repeat_is_repeated_on_all() {
    for reason in with_a_second_pass(1) {
        assert!(reason.expect("three steps").is_some());
    }
}

/// The other ranks use the sums of a later step before they know.
#[test]
fn a_later_step_that_one_rank_must_repeat_is_an_error_on_all() {
    for result in with_a_second_pass(3) {
        let error = result.expect_err("different gradients");
        let text = error.to_string();
        assert!(matches!(error, Error::Invalid(_)) && text.contains("on 1 of 3 ranks"), "{text}");
        assert!(text.contains("--no-overlap"), "{text}");
    }
}
