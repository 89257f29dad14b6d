//! Buckets in device memory give the same gradients as in host memory.
//!
//! The device is emulated; its tensors are in host memory.

use super::{Net, TINY, by_parameter, device, flat, rows, site, uneven_step, worst};
use crate::common::{Kind, options, world};
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn_ddp_collective::{
    DistributedDataParallel, Error, ProcessGroup, Result,
    gradient::{BucketSizes, Reducer, ReducerOptions},
    loader::ShardedBatch,
    module_state,
};

fn reducer(group: &ProcessGroup, net: &Net, options: ReducerOptions) -> Reducer {
    let reducer = Reducer::new(net, group, options).expect("a reducer");
    assert!(reducer.on_device());
    reducer
}

fn on_devices<R: Send>(body: impl Fn(Net, &ProcessGroup) -> R + Sync) -> Vec<R> {
    let stand_in = site::StandIn::new();
    world(Kind::Thread, 3, options(), |group| {
        site::attach(&group, &stand_in);
        let net = module_state::broadcast(Net::new(&device()), &group, 0).expect("broadcast");
        body(net, &group)
    })
}

#[test]
fn gradients_equal_those_of_the_global_batch() {
    for buckets in [BucketSizes::default(), TINY, BucketSizes { first: 1, rest: 64 }] {
        let results = on_devices(|net, group| {
            let mut reducer = reducer(group, &net, ReducerOptions { buckets, ..ReducerOptions::default() });
            let (grads, wanted) = uneven_step(&net, &mut reducer, group.rank());
            let unused: Vec<String> =
                reducer.unused().map(|(path, users)| format!("{path} {users}")).collect();
            // The rank without samples does not count.
            assert_eq!(unused, ["unused.weight 0", "unused.bias 0"]);
            (flat(&grads, &net), by_parameter(&grads, &net).len(), wanted)
        });
        for (ours, _, wanted) in &results {
            assert_eq!(ours, &results[0].0, "the same bits on every rank");
            assert!(worst(ours, wanted) < 1e-6, "{buckets:?}");
        }
    }
}

#[test]
fn accumulated_batches_are_included() {
    let results = on_devices(|net, group| {
        let mut reducer = reducer(group, &net, ReducerOptions::default());
        let x = rows(12, 4, &device());
        let wanted = flat(&net.grads(x.clone()), &net);
        // 4 samples per rank, 1 accumulated and 3 with the step.
        let from = group.rank() * 4;
        let early = reducer.local(&net).grads(x.clone().slice([from..from + 1, 0..4]));
        reducer.accumulate(early, &net, 1);
        let step = reducer.step(3, 12);
        let grads = step.watch(&net).grads(x.slice([from + 1..from + 4, 0..4]));
        let grads = step.finish(grads, &net, &mut vec![]).expect("finish");
        (flat(&grads, &net), wanted)
    });
    for (ours, wanted) in &results {
        assert!(worst(ours, wanted) < 1e-6);
    }
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
