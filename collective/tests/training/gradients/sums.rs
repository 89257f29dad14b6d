//! Reduced gradients equal those of the mean over the global batch.

use super::{Net, TINY, by_parameter, device, flat, number, rows, uneven_step, with_reducer, worst};
use crate::{
    common::{KINDS, options, world},
    parameters::filled,
};
use burn::tensor::Tensor;
use burn_ddp_collective::{
    ProcessGroup,
    gradient::{BucketSizes, Reducer, ReducerOptions},
};

fn choices() -> Vec<ReducerOptions> {
    let sizes = [BucketSizes::default(), TINY, BucketSizes { first: 1, rest: 64 }];
    let both = |buckets| {
        [true, false].map(|overlap| ReducerOptions { buckets, overlap, ..ReducerOptions::default() })
    };
    sizes.into_iter().flat_map(both).collect()
}

#[test]
fn averaged_gradients_equal_those_of_an_uneven_global_batch() {
    for choice in choices() {
        let results = with_reducer(
            3,
            Net::new,
            || choice.clone(),
            |net, mut reducer, group| {
                let (grads, wanted) = uneven_step(&net, &mut reducer, group.rank());
                assert_eq!(reducer.fallback(), None);
                (flat(&grads, &net), wanted)
            },
        );
        for (ours, wanted) in &results {
            assert_eq!(ours, &results[0].0, "the same bits on every rank");
            assert!(worst(ours, wanted) < 1e-6, "{choice:?}");
        }
    }
}

#[test]
fn every_transport_gives_the_same_bits() {
    let on = |kind| {
        let results = world(kind, 2, options(), |group: ProcessGroup| {
            let device = device();
            let net = filled(Net::new(&device), |_, index| number(index));
            let choice = ReducerOptions { buckets: TINY, ..ReducerOptions::default() };
            let mut reducer = Reducer::new(&net, &group, choice).expect("a reducer");
            let x = rows(6, 4, &device).slice([group.rank() * 3..group.rank() * 3 + 3, 0..4]);
            let step = reducer.step(3, 6);
            let grads = step.watch(&net).grads(x);
            let grads = step.finish(grads, &net, &mut vec![]).expect("finish");
            flat(&grads, &net)
        });
        assert_eq!(results[0], results[1]);
        results[0].clone()
    };
    let wanted = on(KINDS[0]);
    assert!(KINDS[1..].iter().all(|kind| on(*kind) == wanted));
}

/// Micro-batches of each rank, of 18 samples; the last one of rank 2 is padding.
const MICRO: [[std::ops::Range<usize>; 3]; 3] =
    [[0..3, 6..8, 12..15], [3..5, 8..12, 15..18], [5..6, 0..1, 0..1]];
const MICRO_COUNTS: [[usize; 3]; 3] = [[3, 2, 3], [2, 4, 3], [1, 0, 0]];

#[test]
fn uneven_micro_batches_add_up_to_the_global_batch() {
    for choice in choices() {
        let results = with_reducer(
            3,
            Net::new,
            || choice.clone(),
            |net, mut reducer, group| {
                let x = rows(18, 4, &device());
                let wanted = flat(&net.grads(x.clone()), &net);
                let micro =
                    |net: &Net, i: usize| net.grads(x.clone().slice([MICRO[group.rank()][i].clone(), 0..4]));
                let counts = MICRO_COUNTS[group.rank()];
                // Twice, to verify that no state is left over.
                let mut ours = Vec::new();
                for _ in 0..2 {
                    for (i, count) in counts[..2].iter().enumerate() {
                        reducer.accumulate(micro(&net, i), &net, *count);
                    }
                    let step = reducer.step(counts[2], 18);
                    let grads = micro(&step.watch(&net), 2);
                    ours.push(flat(&step.finish(grads, &net, &mut vec![]).expect("finish"), &net));
                }
                assert_eq!(ours[0], ours[1]);
                (ours.remove(0), wanted)
            },
        );
        for (ours, wanted) in &results {
            assert_eq!(ours, &results[0].0, "the same bits on every rank");
            assert!(worst(ours, wanted) < 1e-6, "{choice:?}: {}", worst(ours, wanted));
        }
    }
}

#[test]
fn a_world_of_one_accumulates_and_leaves_gradients_unchanged() {
    let (device, group) = (device(), ProcessGroup::solo());
    let net = Net::new(&device);
    let mut reducer = Reducer::new(&net, &group, ReducerOptions::default()).expect("a reducer");
    let x = rows(7, 4, &device);
    let whole = flat(&net.grads(x.clone()), &net);
    let step = reducer.step(7, 7);
    let grads = step.watch(&net).grads(x.clone());
    assert_eq!(flat(&step.finish(grads, &net, &mut vec![]).expect("finish"), &net), whole);

    reducer.accumulate(net.grads(x.clone().slice([0..4, 0..4])), &net, 4);
    let step = reducer.step(3, 7);
    let grads = step.watch(&net).grads(x.slice([4..7, 0..4]));
    let grads = step.finish(grads, &net, &mut vec![]).expect("finish");
    assert!(worst(&flat(&grads, &net), &whole) < 1e-6);
    assert_eq!(reducer.unused().count(), 0);
}

#[test]
fn a_parameter_has_a_gradient_if_any_rank_used_it() {
    for choice in choices() {
        with_reducer(
            3,
            Net::new,
            || choice.clone(),
            |net, mut reducer, group| {
                let x = rows(2, 4, &device());
                let step = reducer.step(2, 6);
                let watched = step.watch(&net);
                // Rank 0 does not use the first layer.
                let loss = match group.rank() {
                    0 => watched.last.forward(Tensor::<2>::ones([2, 8], &device())).mean(),
                    _ => watched.loss(x.clone()),
                };
                let grads = burn::optim::GradientsParams::from_grads(loss.backward(), &watched);
                let grads = step.finish(grads, &net, &mut vec![]).expect("finish");
                let users: Vec<(String, usize)> =
                    reducer.unused().map(|(path, n)| (path.into(), n)).collect();
                let wanted =
                    [("first.weight", 2), ("first.bias", 2), ("unused.weight", 0), ("unused.bias", 0)];
                assert_eq!(users, wanted.map(|(path, n)| (path.to_string(), n)));
                let by_parameter = by_parameter(&grads, &net);
                assert_eq!(
                    by_parameter.iter().map(Option::is_some).collect::<Vec<_>>(),
                    [true, true, true, true, false, false]
                );
                // Two of three ranks have the same gradient, and the third adds zeros.
                let alone = super::by_parameter(&net.grads(x), &net)[0].clone().expect("a gradient");
                let alone: Vec<f32> = alone.iter().map(|g| g * 2.0 / 3.0).collect();
                assert!(worst(by_parameter[0].as_ref().expect("a gradient"), &alone) < 1e-6);
            },
        );
    }
}

#[test]
fn gradients_of_padding_are_ignored() {
    let results = with_reducer(2, Net::new, ReducerOptions::default, |net, mut reducer, group| {
        let x = rows(2, 4, &device());
        let (x, count) = if group.rank() == 0 { (x, 2) } else { (x * f32::NAN, 0) };
        let step = reducer.step(count, 2);
        let grads = step.watch(&net).grads(x);
        let grads = flat(&step.finish(grads, &net, &mut vec![]).expect("finish"), &net);
        let unused: Vec<_> = reducer.unused().map(|(path, ranks)| (path.to_owned(), ranks)).collect();
        assert_eq!(unused, [("unused.weight".to_owned(), 0), ("unused.bias".to_owned(), 0)]);
        grads
    });
    assert!(results.iter().flatten().all(|g| g.is_finite()));
}
