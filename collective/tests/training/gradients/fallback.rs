//! Steps whose gradients cannot be reduced during backward: they are detected and give the same sums.

use super::{
    Net, PLACES, bits, device, flat, number, reduced, rows, tiny, with_reducer, with_reducer_at, worst,
};
use crate::support::filled;
use burn::module::{Lora, Module};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Device;
use burn_ddp_collective::gradient::{Reducer, clip_by_global_norm};

/// Three steps with and without overlap must be bit-identical, and `reason` must be the reason for the fallback.
///
/// `grads` receives the rank and the step.
fn falls_back(grads: impl Fn(&Net, usize, usize) -> GradientsParams + Sync, reason: &str) {
    for place in PLACES {
        let run = |overlap| {
            with_reducer_at(
                *place,
                2,
                Net::new,
                || tiny(overlap),
                |net, mut reducer: Reducer, group| {
                    let net = filled(net, |_, index| number(index));
                    let mut totals = vec![1.0];
                    let mut steps = Vec::new();
                    for number in 0..3 {
                        let step = reducer.step(3, 6);
                        let grads = grads(&step.watch(&net), group.rank(), number);
                        steps.push(bits(&step.finish(grads, &net, &mut totals).expect("finish"), &net));
                    }
                    assert_eq!(totals, [8.0]);
                    (steps, reducer.fallback().map(String::from))
                },
            )
        };
        let (with, without) = (run(true), run(false));
        for ((ours, why), (wanted, none)) in with.into_iter().zip(without) {
            assert_eq!(ours, wanted);
            assert_eq!(none, None);
            let why = why.expect("a reason");
            assert!(why.contains(reason) || why.contains("another rank"), "{why}");
        }
    }
}

/// The sum over one or two backward passes.
fn passes(net: &Net, second: bool) -> GradientsParams {
    let mut sum = GradientsAccumulator::new();
    sum.accumulate(net, net.grads(rows(3, 4, &device())));
    if second {
        sum.accumulate(net, net.grads(rows(3, 4, &device()) * 2.0));
    }
    sum.grads()
}

#[test]
fn two_backward_passes_in_a_step() {
    falls_back(|net, _, _| passes(net, true), "used again after backward");
}

#[test]
fn on_one_rank_only() {
    falls_back(|net, rank, _| passes(net, rank == 1), "used again after backward");
}

#[test]
fn two_graphs_at_once() {
    let twice = |net: &Net, _, _| {
        let losses = [net.loss(rows(3, 4, &device())), net.loss(rows(3, 4, &device()) * 2.0)];
        let mut sum = GradientsAccumulator::new();
        for loss in losses {
            sum.accumulate(net, GradientsParams::from_grads(loss.backward(), net));
        }
        sum.grads()
    };
    // Both uses are registered before the first gradient, so that the sum is reduced. `step` then changes it after
    // backward.
    falls_back(twice, "changed after backward");
}

#[test]
fn gradients_that_the_step_changes_after_backward() {
    let clipped = |net: &Net, _, _| {
        let grads = net.grads(rows(3, 4, &device()));
        clip_by_global_norm(grads, net, 0.01).expect("clip").0
    };
    falls_back(clipped, "changed after backward");
    let clipped_later = |net: &Net, _, number| {
        let grads = net.grads(rows(3, 4, &device()));
        let norm = if number == 2 { 0.01 } else { 1e9 };
        clip_by_global_norm(grads, net, norm).expect("clip").0
    };
    falls_back(clipped_later, "changed after backward");
    let left_out = |net: &Net, _, _| {
        let mut grads = net.grads(rows(3, 4, &device()));
        grads.remove::<2>(net.first.weight.id);
        grads
    };
    falls_back(left_out, "changed after backward");
}

#[test]
fn a_forward_pass_without_backward_has_no_effect() {
    let results = with_reducer(
        2,
        Net::new,
        || tiny(true),
        |net, mut reducer: Reducer, _| {
            let wanted = flat(&net.grads(rows(3, 4, &device())), &net);
            let grads = reduced(&mut reducer, &net, [3, 6], |watched| {
                // Registers a use of each parameter whose gradient never arrives.
                let _ = watched.loss(rows(2, 4, &device()));
                watched.grads(rows(3, 4, &device()))
            });
            assert_eq!(reducer.fallback(), None);
            (flat(&grads, &net), wanted)
        },
    );
    for (ours, wanted) in results {
        assert!(worst(&ours, &wanted) < 1e-6);
    }
}

/// One layer in two fields; forward uses the first or neither.
#[derive(Module, Debug)]
struct Tied {
    net: Net,
    layer: Linear,
    again: Linear,
}

impl Tied {
    fn new(device: &Device) -> Self {
        let layer = LinearConfig::new(4, 4).init(device);
        Tied { net: Net::new(device), again: layer.clone(), layer }
    }

    fn grads(&self, uses_layer: bool) -> GradientsParams {
        let x = rows(3, 4, &device());
        let x = if uses_layer { self.layer.forward(x) } else { x };
        GradientsParams::from_grads(self.net.loss(x).backward(), self)
    }
}

#[test]
fn an_unused_tied_parameter_has_no_effect() {
    let results = with_reducer(
        2,
        Tied::new,
        || tiny(true),
        |model, mut reducer: Reducer, _| {
            [false, true, false].map(|uses_layer| {
                let wanted = flat(&model.grads(uses_layer), &model);
                let grads = reduced(&mut reducer, &model, [3, 6], |model| model.grads(uses_layer));
                assert_eq!(reducer.fallback(), None, "uses the layer: {uses_layer}");
                (flat(&grads, &model), wanted)
            })
        },
    );
    for (ours, wanted) in results.concat() {
        assert!(!ours.is_empty() && worst(&ours, &wanted) < 1e-6);
    }
}

#[test]
fn reparameterized_parameters() {
    let make = |device: &_| Net::new(device).apply_lora(Lora::new(2, 4.0));
    let run = |overlap| {
        with_reducer(
            2,
            make,
            || tiny(overlap),
            |net, mut reducer: Reducer, group| {
                let net = filled(net, |_, index| number(index));
                let x = rows(3, 4, &device()) + group.rank() as f32;
                let ours = bits(&reduced(&mut reducer, &net, [3, 6], |net| net.grads(x)), &net);
                assert_eq!(reducer.fallback(), None);
                assert!(!ours.is_empty());
                ours
            },
        )
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_parameter_that_became_trainable_is_an_error_with_a_remedy() {
    let make = |device: &_| Net::new(device).freeze();
    let errors = with_reducer(
        2,
        make,
        || tiny(true),
        |net, mut reducer: Reducer, _| {
            let net = net.unfreeze();
            let step = reducer.step(3, 6);
            let grads = step.watch(&net).grads(rows(3, 4, &device()));
            step.finish(grads, &net, &mut vec![]).expect_err("not planned for").to_string()
        },
    );
    assert!(errors.iter().all(|error| error.contains("new reducer")), "{errors:?}");
}

#[test]
fn records_and_later_copies_are_not_watched() {
    with_reducer(
        2,
        Net::new,
        || tiny(true),
        |net, mut reducer: Reducer, _| {
            let step = reducer.step(3, 6);
            let watched = step.watch(&net);
            let bytes = |net: &Net| net.clone().into_record().into_bytes().expect("a record");
            assert_eq!(bytes(&watched), bytes(&net));
            assert_eq!(watched.num_params(), net.num_params());
            let x = rows(3, 4, &device());
            // Validation uses the watched parameters without autodiff.
            let valid = watched.valid().loss(x.clone().inner());
            assert_eq!(valid.into_data(), net.loss(x.clone()).inner().into_data());
            let grads = watched.grads(x.clone());
            step.finish(grads, &net, &mut vec![]).expect("finish");
            // A copy that outlives its step works without being watched.
            assert_eq!(bits(&watched.grads(x.clone()), &net), bits(&net.grads(x), &net));
        },
    );
}
