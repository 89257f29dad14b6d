//! Overlap of communication with backward: order of events, and bit-identical results.

use super::{bits, device, reduced, rows, tiny, with_reducer};
use crate::common::{KINDS, Kind, options, world};
use burn::backend::{Flex, tensor::FloatTensor};
use burn::module::Module;
use burn::nn::{
    Linear, LinearConfig,
    conv::{Conv2d, Conv2dConfig},
};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use burn_ddp_collective::{
    ProcessGroup, ReduceOp, Result,
    gradient::{Bucket, CommHook, Reducer, ReducerOptions},
    module_state, tensor,
};
use kernels::{autodiff, layers};
use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

/// Events in order, for which threads can wait.
#[derive(Debug, Default)]
struct Log {
    events: Mutex<Vec<String>>,
    more: Condvar,
}

impl Log {
    fn push(&self, event: impl Into<String>) {
        self.events.lock().unwrap().push(event.into());
        self.more.notify_all();
    }

    fn events(&self) -> Vec<String> {
        self.events.lock().unwrap().clone()
    }

    /// Waits for an event, with a deadline.
    fn expect(&self, event: &str) {
        let missing = |events: &mut Vec<String>| !events.iter().any(|e| e == event);
        let events = self.events.lock().unwrap();
        let (events, _) = self.more.wait_timeout_while(events, Duration::from_secs(30), missing).unwrap();
        assert!(events.iter().any(|e| e == event), "`{event}` did not happen: {events:?}");
    }
}

/// Records which bucket is reduced.
#[derive(Debug)]
struct Recorder(Arc<Log>);

impl CommHook for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn reduce(&self, bucket: &mut Bucket<'_>, group: &ProcessGroup) -> Result<()> {
        group.all_reduce(bucket.values_mut(), ReduceOp::Sum)?;
        self.0.push(format!("bucket {}", bucket.index()));
        Ok(())
    }
}

/// One bucket per parameter, whose reductions are recorded.
fn recorded(overlap: bool, log: &Arc<Log>) -> ReducerOptions {
    ReducerOptions { hook: Some(Arc::new(Recorder(log.clone()))), ..tiny(overlap) }
}

/// Identity whose backward pass waits for an event, and then records another.
fn gate<const D: usize>(
    x: Tensor<D>,
    log: &Arc<Log>,
    waits_for: &'static str,
    records: &'static str,
) -> Tensor<D> {
    let log = log.clone();
    let backward = move |[]: [FloatTensor<Flex>; 0], gradient, _: [bool; 1]| {
        log.expect(waits_for);
        log.push(records);
        [Some(gradient)]
    };
    autodiff::run::<Flex, _, 1, 0, D>([x.into_dispatch()], |[x]| Some((x, backward)))
        .expect("a tensor of Flex")
}

/// Three layers of Burn's own types, unaware of the overlap.
#[derive(Module, Debug)]
struct Three {
    a: Linear,
    b: Linear,
    c: Linear,
}

impl Three {
    fn new(device: &Device) -> Self {
        let linear = || LinearConfig::new(4, 4).init(device);
        Three { a: linear(), b: linear(), c: linear() }
    }
}

#[test]
fn buckets_are_reduced_during_backward() {
    for device in [device(), device().gradient_checkpointing()] {
        world(Kind::Thread, 2, options(), |group: ProcessGroup| {
            let log = Arc::new(Log::default());
            let net = module_state::broadcast(Three::new(&device), &group, 0).expect("broadcast");
            let mut reducer = Reducer::new(&net, &group, recorded(true, &log)).expect("a reducer");
            assert_eq!(reducer.buckets(), 6);
            for _ in 0..3 {
                log.events.lock().unwrap().clear();
                reduced(&mut reducer, &net, [3, 6], |net| {
                    let x = rows(3, 4, &device);
                    let x = gate(net.a.forward(x).tanh(), &log, "bucket 3", "backward leaves b");
                    let x = gate(net.b.forward(x).tanh(), &log, "bucket 1", "backward leaves c");
                    let grads = GradientsParams::from_grads(net.c.forward(x).mean().backward(), net);
                    log.push("backward is over");
                    grads
                });
                let events = log.events();
                let at = |event: &str| events.iter().position(|e| e == event).expect(event);
                // c's two parameters are reduced when backward leaves c, b's two when it leaves b.
                assert!(at("bucket 1") < at("backward leaves c"), "{events:?}");
                assert!(at("backward leaves c") < at("bucket 2"), "{events:?}");
                assert!(at("bucket 3") < at("backward leaves b"), "{events:?}");
                assert!(at("backward leaves b") < at("backward is over"), "{events:?}");
                // The last bucket waits for the totals.
                assert!(at("backward is over") < at("bucket 5"), "{events:?}");
            }
            assert_eq!(reducer.fallback(), None);
        });
    }
}

/// Two convolutions of this project's kernels.
#[derive(Module, Debug)]
struct Convolutions {
    first: Conv2d,
    second: Conv2d,
}

#[test]
fn the_buckets_of_a_convolution_are_reduced_during_backward() {
    world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let log = Arc::new(Log::default());
        let conv = || Conv2dConfig::new([1, 1], [3, 3]).init(&device());
        let net = Convolutions { first: conv(), second: conv() };
        let net = module_state::broadcast(net, &group, 0).expect("broadcast");
        let mut reducer = Reducer::new(&net, &group, recorded(true, &log)).expect("a reducer");
        reduced(&mut reducer, &net, [2, 4], |net| {
            let x = layers::conv(&net.first, rows(2, 64, &device()).reshape([2, 1, 8, 8]));
            // Backward leaves the second convolution when its weight, in bucket 1, has been reduced.
            let x = gate(x, &log, "bucket 1", "backward leaves the second");
            let loss = layers::conv_relu(&net.second, x).mean();
            GradientsParams::from_grads(loss.backward(), net)
        });
        assert_eq!(reducer.fallback(), None);
    });
}

#[test]
fn without_overlap_buckets_are_reduced_after_backward() {
    let log = [(); 2].map(|()| Arc::new(Log::default()));
    world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let log = log[group.rank()].clone();
        let net = module_state::broadcast(Three::new(&device()), &group, 0).expect("broadcast");
        let mut reducer = Reducer::new(&net, &group, recorded(false, &log)).expect("a reducer");
        reduced(&mut reducer, &net, [3, 6], |net| {
            let loss = net.c.forward(net.b.forward(net.a.forward(rows(3, 4, &device())))).mean();
            let grads = GradientsParams::from_grads(loss.backward(), net);
            log.push("backward is over");
            grads
        });
        let wanted =
            ["backward is over", "bucket 0", "bucket 1", "bucket 2", "bucket 3", "bucket 4", "bucket 5"];
        assert_eq!(log.events(), wanted);
    });
}

/// As in SyncBatchNorm: the training thread makes a collective call during backward.
#[test]
fn collectives_inside_backward_do_not_change_the_order_of_buckets() {
    for kind in KINDS {
        world(kind, 2, options(), |group: ProcessGroup| {
            let net = module_state::broadcast(Three::new(&device()), &group, 0).expect("broadcast");
            let mut reducer = Reducer::new(&net, &group, tiny(true)).expect("a reducer");
            let loss = |net: &Three, rank: usize| {
                let x = net.a.forward(rows(3, 4, &device()) + rank as f32).tanh();
                let x = tensor::all_reduce(x, &group, ReduceOp::Mean).expect("all_reduce").tanh();
                let x = tensor::all_reduce(net.b.forward(x), &group, ReduceOp::Sum).expect("all_reduce");
                net.c.forward(x).mean()
            };
            let mut all = Vec::new();
            for _ in 0..5 {
                let grads = reduced(&mut reducer, &net, [3, 6], |net| {
                    // Rank 1 uses only c, so that its other buckets are ready at other times.
                    let used = loss(net, group.rank());
                    let used = if group.rank() == 1 { used * 0.0 + net.c.weight.val().sum() } else { used };
                    GradientsParams::from_grads(used.backward(), net)
                });
                all.push(bits(&grads, &net));
            }
            assert!(all.iter().all(|bits| *bits == all[0]));
            assert_eq!(reducer.fallback(), None);
        });
    }
}

#[test]
fn buckets_are_reduced_in_the_same_order_on_every_rank() {
    let logs = [(); 2].map(|()| Arc::new(Log::default()));
    with_reducer(2, Three::new, ReducerOptions::default, |net, _, group| {
        let choice = recorded(true, &logs[group.rank()]);
        let mut reducer = Reducer::new(&net, &group, choice).expect("a reducer");
        reduced(&mut reducer, &net, [3, 6], |net| {
            let x = rows(3, 4, &device());
            // Rank 1 runs the layers in reverse order.
            let y = match group.rank() {
                0 => net.c.forward(net.b.forward(net.a.forward(x))),
                _ => net.a.forward(net.b.forward(net.c.forward(x))),
            };
            GradientsParams::from_grads(y.mean().backward(), net)
        });
    });
    let wanted: Vec<String> = (0..6).map(|bucket| format!("bucket {bucket}")).collect();
    assert!(logs.iter().all(|log| log.events() == wanted), "{logs:?}");
}
