//! Reduced gradients equal those of the mean over the global batch.

use super::{
    Net, PLACES, TINY, by_parameter, device, flat, number, reduced, rows, tiny, uneven_step, with_reducer,
    with_reducer_at, worst,
};
use crate::{
    common::{KINDS, options, world},
    support::filled,
};
use burn::optim::GradientsParams;
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

/// Compares the gradients of a step of three ranks with those of its global batch. `step` returns both.
fn in_every_place(step: impl Fn(&Net, &mut Reducer, usize) -> (Vec<f32>, Vec<f32>) + Sync) {
    for (place, choice) in PLACES.iter().flat_map(|place| choices().into_iter().map(move |it| (*place, it))) {
        let results = with_reducer_at(
            place,
            3,
            Net::new,
            || choice.clone(),
            |net, mut reducer, group| step(&net, &mut reducer, group.rank()),
        );
        for (ours, wanted) in &results {
            assert_eq!(ours, &results[0].0, "the same bits on every rank");
            assert!(worst(ours, wanted) < 1e-6, "{place:?} {choice:?}: {}", worst(ours, wanted));
        }
    }
}

#[test]
fn averaged_gradients_equal_those_of_an_uneven_global_batch() {
    in_every_place(|net, reducer, rank| {
        let (grads, wanted) = uneven_step(net, reducer, rank);
        assert_eq!(reducer.fallback(), None);
        // The rank without samples does not count.
        assert!(reducer.unused().eq([("unused.weight", 0), ("unused.bias", 0)]));
        (flat(&grads, net), wanted)
    });
}

#[test]
fn every_transport_gives_the_same_bits() {
    let on = |kind| {
        let results = world(kind, 2, options(), |group: ProcessGroup| {
            let device = device();
            let net = filled(Net::new(&device), |_, index| number(index));
            let mut reducer = Reducer::new(&net, &group, tiny(true)).expect("a reducer");
            let x = rows(6, 4, &device).slice([group.rank() * 3..group.rank() * 3 + 3, 0..4]);
            flat(&reduced(&mut reducer, &net, [3, 6], |net| net.grads(x)), &net)
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
    in_every_place(|net, reducer, rank| {
        let x = rows(18, 4, &device());
        let wanted = flat(&net.grads(x.clone()), net);
        let micro = |net: &Net, i: usize| net.grads(x.clone().slice([MICRO[rank][i].clone(), 0..4]));
        let counts = MICRO_COUNTS[rank];
        // Twice, to verify that no state is left over.
        let ours = [(); 2].map(|()| {
            for (i, count) in counts[..2].iter().enumerate() {
                let early = micro(&reducer.local(net), i);
                reducer.accumulate(early, net, *count);
            }
            flat(&reduced(reducer, net, [counts[2], 18], |net| micro(net, 2)), net)
        });
        assert_eq!(ours[0], ours[1]);
        (ours[0].clone(), wanted)
    });
}

#[test]
fn a_world_of_one_accumulates_and_leaves_gradients_unchanged() {
    let (device, group) = (device(), ProcessGroup::solo());
    let net = Net::new(&device);
    let mut reducer = Reducer::new(&net, &group, ReducerOptions::default()).expect("a reducer");
    let x = rows(7, 4, &device);
    let whole = flat(&net.grads(x.clone()), &net);
    let grads = reduced(&mut reducer, &net, [7, 7], |net| net.grads(x.clone()));
    assert_eq!(flat(&grads, &net), whole);

    reducer.accumulate(net.grads(x.clone().slice([0..4, 0..4])), &net, 4);
    let grads = reduced(&mut reducer, &net, [3, 7], |net| net.grads(x.slice([4..7, 0..4])));
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
                let grads = reduced(&mut reducer, &net, [2, 6], |net| {
                    // Rank 0 does not use the first layer.
                    let loss = match group.rank() {
                        0 => net.last.forward(Tensor::<2>::ones([2, 8], &device())).mean(),
                        _ => net.loss(x.clone()),
                    };
                    GradientsParams::from_grads(loss.backward(), net)
                });
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
        let grads = flat(&reduced(&mut reducer, &net, [count, 2], |net| net.grads(x)), &net);
        let unused: Vec<_> = reducer.unused().map(|(path, ranks)| (path.to_owned(), ranks)).collect();
        assert_eq!(unused, [("unused.weight".to_owned(), 0), ("unused.bias".to_owned(), 0)]);
        grads
    });
    assert!(results.iter().flatten().all(|g| g.is_finite()));
}
