//! Collectives over every transport against a serial reference, for all types, reductions and several world sizes.

use crate::case::{Case, OPS};
use crate::common::{self, Kind, options, world};
use crate::reference::{Reference, bytes, data, serial};
use burn_ddp_comm::{Options, ProcessGroup, ReduceOp, transport::tcp::Algorithm};
use half::{bf16, f16};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

const WORLDS: [usize; 5] = [1, 2, 3, 4, 7];

fn property<T: Reference>() {
    // Groups over several machines use another order; they have their own test.
    for kind in [Kind::Tcp, Kind::Shm, Kind::Thread] {
        property_of::<T>(kind, &options());
    }
    // What worlds of these sizes do not choose.
    for algorithm in [Algorithm::Tree, Algorithm::Chain] {
        property_of::<T>(Kind::Tcp, &options().tcp_algorithm(algorithm));
    }
}

fn property_of<T: Reference>(kind: Kind, options: &Options) {
    for size in WORLDS {
        // The same cases on every rank; each case is one round of collectives in one world.
        // Around the ends of pieces and areas, in bytes.
        let edge = prop::sample::select(vec![8 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20]);
        let edge = (edge, 0..300usize).prop_map(|(edge, off)| (edge + off - 150) / size_of::<T>());
        let length = prop_oneof![Just(0), Just(1), 0..40usize, 0..20_000usize, 100_000..300_000usize, edge];
        let case = (length, prop::sample::select(&OPS[..]), any::<u64>());
        let mut runner = TestRunner::default();
        let drawn = (0..4).map(|_| case.new_tree(&mut runner).unwrap().current());
        let fixed = [0, 1].map(|count| (count, ReduceOp::Sum, 1));
        let cases: Vec<_> =
            drawn.chain(fixed).map(|(count, op, seed)| Case::<T>::new(size, op, count, seed)).collect();
        world(kind, size, options.clone(), |group| cases.iter().for_each(|case| case.check(&group)));
    }
}

#[test]
fn f32_matches_the_reference() {
    property::<f32>();
}
#[test]
fn f64_matches_the_reference() {
    property::<f64>();
}
#[test]
fn f16_matches_the_reference() {
    property::<f16>();
}
#[test]
fn bf16_matches_the_reference() {
    property::<bf16>();
}
#[test]
fn i32_matches_the_reference() {
    property::<i32>();
}
#[test]
fn i64_matches_the_reference() {
    property::<i64>();
}
#[test]
fn u8_matches_the_reference() {
    property::<u8>();
}

#[test]
fn small_calls_of_many_ranks_use_the_tree() {
    let counts = [0, 1, 1000, 20_000].into_iter();
    let cases: Vec<_> = counts.flat_map(|count| OPS.map(|op| Case::<f32>::new(11, op, count, 7))).collect();
    world(Kind::Tcp, 11, options(), |group| cases.iter().for_each(|case| case.check(&group)));
}

#[test]
fn a_chain_of_many_ranks_gives_the_bits_of_chunks() {
    for (size, count) in [(16, 70_001), (33, 9_999)] {
        let sums = |algorithm| {
            world(Kind::Tcp, size, options().tcp_algorithm(algorithm), |group| {
                let mut sum = data::<f32>(3, group.rank(), count);
                group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                let mut mean = data::<bf16>(3, group.rank(), count);
                group.all_reduce(&mut mean, ReduceOp::Mean).unwrap();
                (bytes(&sum).to_vec(), bytes(&mean).to_vec())
            })
        };
        assert_eq!(sums(Algorithm::Chain), sums(Algorithm::Chunks));
    }
}

/// Elements whose sum is 1 in rank order and 0 if ranks 0 and 1, and 2 and 3, are added first.
const ORDERED: [f32; 4] = [1e8, 1.0, -1e8, 1.0];

#[test]
fn sums_have_the_documented_order_on_every_transport() {
    let large = 100_000;
    for kind in common::KINDS {
        world(kind, 4, options(), |group| {
            for count in [8, large] {
                let by_machine = kind == Kind::Hierarchical && count == large;
                let mut sum = vec![ORDERED[group.rank()]; count];
                group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                let expected = if by_machine { 0.0 } else { 1.0 };
                assert!(sum.iter().all(|element| *element == expected), "{kind:?}, {count}: {}", sum[0]);
                let mut sum = vec![ORDERED[group.rank()]; count];
                let part = group.reduce_scatter(&mut sum, ReduceOp::Sum).unwrap();
                assert!(part.iter().all(|element| *element == 1.0), "{kind:?}, {count}: {}", part[0]);
            }
        });
    }
}

#[test]
fn hierarchical_groups_reduce_within_machines_first() {
    fn check<T: Reference + From<u8>>(group: &ProcessGroup, op: ReduceOp, count: usize) {
        // Small integers: exact in every order and type.
        let value = |rank: usize, i: usize| T::from(((i * 7 + rank * 3) % 5 + 1) as u8);
        let all: Vec<Vec<T>> =
            (0..group.world_size()).map(|rank| (0..count).map(|i| value(rank, i)).collect()).collect();
        let mut buffer = all[group.rank()].clone();
        group.all_reduce(&mut buffer, op).unwrap();
        assert_eq!(buffer, serial(op, &all), "{op:?} of {count} {:?}", T::DTYPE);
    }
    // Two machines with two ranks, one with a single rank.
    world(Kind::Hierarchical, 5, options(), |group| {
        assert_eq!(group.transport(), "shm+tcp");
        for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product] {
            for count in [0, 1, 100, 20_000, 100_000] {
                check::<f32>(&group, op, count);
                check::<f64>(&group, op, count);
                check::<f16>(&group, op, count);
                check::<bf16>(&group, op, count);
                check::<i32>(&group, op, count);
                check::<i64>(&group, op, count);
                check::<u8>(&group, op, count);
            }
        }
        check::<i32>(&group, ReduceOp::Mean, 50_000);
        // The mean is rounded once, at the end, on every path.
        let mut means = vec![f16::from_f32(group.rank() as f32 + 0.5); 50_000];
        group.all_reduce(&mut means, ReduceOp::Mean).unwrap();
        assert!(means.iter().all(|mean| *mean == f16::from_f32(2.5)));
    });
}
