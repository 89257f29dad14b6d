//! Collectives over every transport against a serial reference: every type and reduction, several
//! world sizes, random lengths.

mod common;

use collective::{Element, ProcessGroup, ReduceOp};
use common::{KINDS, Kind, options, world};
use half::{bf16, f16};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const WORLDS: [usize; 5] = [1, 2, 3, 4, 7];
const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

/// How the reference computes with a type.
trait Reference: Element + PartialEq {
    type Wide: Copy;
    fn random(rng: &mut StdRng) -> Self;
    fn widen(self) -> Self::Wide;
    fn fold(op: ReduceOp, a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn finish(op: ReduceOp, world: usize, wide: Self::Wide) -> Self;
}

macro_rules! float {
    ($t:ty, $wide:ty, $widen:expr, $narrow:expr) => {
        impl Reference for $t {
            type Wide = $wide;
            fn random(rng: &mut StdRng) -> Self {
                $narrow(rng.random_range(-2.0..2.0))
            }
            fn widen(self) -> $wide {
                $widen(self)
            }
            fn fold(op: ReduceOp, a: $wide, b: $wide) -> $wide {
                match op {
                    ReduceOp::Sum | ReduceOp::Mean => a + b,
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Product => a * b,
                }
            }
            fn finish(op: ReduceOp, world: usize, wide: $wide) -> Self {
                $narrow(if op == ReduceOp::Mean { wide / world as $wide } else { wide })
            }
        }
    };
}
float!(f32, f32, |v| v, |v| v);
float!(f64, f64, |v| v, |v| v);
float!(f16, f32, f16::to_f32, f16::from_f32);
float!(bf16, f32, bf16::to_f32, bf16::from_f32);

macro_rules! integer {
    ($t:ty) => {
        impl Reference for $t {
            type Wide = i128;
            fn random(rng: &mut StdRng) -> Self {
                rng.random()
            }
            fn widen(self) -> i128 {
                self as i128
            }
            fn fold(op: ReduceOp, a: i128, b: i128) -> i128 {
                match op {
                    ReduceOp::Sum => (a + b) as $t as i128,
                    ReduceOp::Mean => a + b,
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Product => (a * b) as $t as i128,
                }
            }
            fn finish(op: ReduceOp, world: usize, wide: i128) -> Self {
                (if op == ReduceOp::Mean { wide / world as i128 } else { wide }) as $t
            }
        }
    };
}
integer!(i32);
integer!(i64);
integer!(u8);

fn data<T: Reference>(seed: u64, rank: usize, count: usize) -> Vec<T> {
    let mut rng = StdRng::seed_from_u64(seed ^ (rank as u64) << 32);
    (0..count).map(|_| T::random(&mut rng)).collect()
}

fn serial<T: Reference>(op: ReduceOp, all: &[Vec<T>]) -> Vec<T> {
    (0..all[0].len())
        .map(|i| {
            let wide = all.iter().map(|rank| rank[i].widen()).reduce(|a, b| T::fold(op, a, b)).unwrap();
            T::finish(op, all.len(), wide)
        })
        .collect()
}

fn bytes<T: Element>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// Every operation once with these lengths, on every rank, against the reference.
fn check<T: Reference>(group: &ProcessGroup, op: ReduceOp, count: usize, seed: u64) {
    let (rank, size) = (group.rank(), group.world_size());
    let all: Vec<Vec<T>> = (0..size).map(|rank| data(seed, rank, count)).collect();

    let mut buffer = all[rank].clone();
    group.all_reduce(&mut buffer, op).unwrap();
    // Bits, not values: all ranks and the serial order must agree exactly.
    assert_eq!(bytes(&buffer), bytes(&serial(op, &all)), "{op:?} of {count} {:?}", T::DTYPE);

    let root = seed as usize % size;
    let mut buffer = all[rank].clone();
    group.broadcast(&mut buffer, root).unwrap();
    assert_eq!(buffer, all[root]);

    assert_eq!(group.all_gather(&all[rank]).unwrap(), all);

    let mut buffer = all[rank].clone();
    group.reduce(&mut buffer, op, root).unwrap();
    let expected = if rank == root { serial(op, &all) } else { all[rank].clone() };
    assert_eq!(bytes(&buffer), bytes(&expected), "reduce {op:?} of {count} {:?} to {root}", T::DTYPE);

    // Equal parts need a multiple of the world size.
    let wide: Vec<Vec<T>> = (0..size).map(|rank| data(!seed, rank, count * size)).collect();
    let mut buffer = wide[rank].clone();
    let part = group.reduce_scatter(&mut buffer, op).unwrap().to_vec();
    let mine = rank * count..(rank + 1) * count;
    assert_eq!(bytes(&part), bytes(&serial(op, &wide)[mine.clone()]), "reduce_scatter {op:?}");
    let mut expected = wide[rank].clone();
    expected[mine.clone()].copy_from_slice(&part);
    assert_eq!(bytes(&buffer), bytes(&expected), "the rest of the buffer stays");

    assert_eq!(group.gather(&all[rank], root).unwrap(), (rank == root).then(|| all.clone()));
    let mut part = vec![T::zeroed(); count];
    let source = if rank == root { &wide[root][..] } else { &[] };
    group.scatter(source, &mut part, root).unwrap();
    assert_eq!(part, wide[root][mine]);

    // Around a ring, even ranks first, so that nobody waits for itself.
    if size > 1 {
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let mut got = vec![T::zeroed(); count];
        if rank % 2 == 0 {
            group.send(&all[rank], next).unwrap();
            group.recv(&mut got, previous).unwrap();
        } else {
            group.recv(&mut got, previous).unwrap();
            group.send(&all[rank], next).unwrap();
        }
        assert_eq!(got, all[previous]);
    }

    let uneven: Vec<Vec<T>> = (0..size).map(|rank| data(seed, rank, (count * (rank + 1)) % 5000)).collect();
    assert_eq!(group.all_gather_v(&uneven[rank]).unwrap(), uneven);
    group.barrier().unwrap();
}

fn property<T: Reference>() {
    // Several machines have an order of their own; see the test for them.
    for (kind, size) in
        [Kind::Tcp, Kind::Shm, Kind::Thread].into_iter().flat_map(|kind| WORLDS.map(|size| (kind, size)))
    {
        // The same cases on every rank; each case is one round of collectives in one world.
        let length = prop_oneof![Just(0usize), Just(1), 0..40usize, 0..20_000usize, 100_000..300_000usize];
        let case = (length, prop::sample::select(&OPS[..]), any::<u64>());
        let mut runner = TestRunner::default();
        let cases: Vec<_> = (0..4).map(|_| case.new_tree(&mut runner).unwrap().current()).collect();
        world(kind, size, options(), |group| {
            for (count, op, seed) in &cases {
                check::<T>(&group, *op, *count, *seed);
            }
            for count in [0, 1] {
                check::<T>(&group, ReduceOp::Sum, count, 1);
            }
        });
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
fn many_ranks_go_through_the_tree() {
    world(Kind::Tcp, 11, options(), |group| {
        for count in [0, 1, 1000, 20_000] {
            for op in OPS {
                check::<f32>(&group, op, count, 7);
            }
        }
    });
}

#[test]
fn objects_travel() {
    for kind in KINDS {
        let all = world(kind, 3, options(), |group| {
            let mine = (group.rank(), "x".repeat(group.rank()));
            let all = group.all_gather_object(&mine).unwrap();
            let root: Vec<u32> = group.broadcast_object(&vec![group.rank() as u32], 2).unwrap();
            (all, root)
        });
        for (gathered, root) in all {
            assert_eq!(gathered, [(0, "".to_string()), (1, "x".into()), (2, "xx".into())]);
            assert_eq!(root, [2]);
        }
    }
}

#[test]
fn groups_split_and_split_again() {
    for kind in KINDS {
        world(kind, 6, options(), |group| {
            let rank = group.rank();
            // Odd and even; the key turns the order around.
            let half = group.split(rank as u64 % 2, -(rank as i64)).unwrap();
            assert_eq!(half.world_size(), 3);
            assert_eq!(half.members(), if rank % 2 == 0 { [4, 2, 0] } else { [5, 3, 1] });
            assert_eq!(half.members()[half.rank()], rank);
            let mut sum = [rank as i64];
            half.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [if rank % 2 == 0 { 6 } else { 9 }]);
            let alone = half.split(rank as u64, 0).unwrap();
            assert_eq!((alone.world_size(), alone.members()), (1, &[rank][..]));
            alone.barrier().unwrap();
            // The whole group goes on as before.
            group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [45]);
        });
    }
}

#[test]
fn background_calls_keep_the_order() {
    for kind in KINDS {
        world(kind, 3, options(), |group| {
            let works: Vec<_> = (0..20)
                .map(|i| group.all_reduce_async(vec![i as f32; 1000 * i], ReduceOp::Sum).unwrap())
                .collect();
            // A blocking call comes after all that were started before it.
            let gathered = group.all_gather(&[group.rank() as i32]).unwrap();
            assert_eq!(gathered.concat(), [0, 1, 2]);
            let several = group
                .start(|group| {
                    group.barrier()?;
                    group.all_gather_v(&vec![7u8; group.rank()])
                })
                .unwrap();
            for (i, mut work) in works.into_iter().enumerate() {
                while !work.is_done() {
                    std::thread::yield_now();
                }
                assert_eq!(work.wait().unwrap(), vec![3.0 * i as f32; 1000 * i]);
            }
            assert_eq!(several.wait().unwrap().concat(), [7, 7, 7]);
            let scattered = group.reduce_scatter_async(vec![1i64; 6], ReduceOp::Sum).unwrap().wait().unwrap();
            assert_eq!(scattered, [3, 3]);
        });
    }
}

#[test]
fn one_rank_works_for_all() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let results = world(kind, 3, options(), |group| {
            let file = folder.path().join("once");
            let once = || std::fs::File::create_new(&file).map(|_| group.rank());
            let first = group.run_on(1, once).unwrap();
            let error = group.run_on(1, once).unwrap_err();
            let zero = group.on_rank_zero(|| 5);
            // The group is still good.
            group.barrier().unwrap();
            (first, error, zero)
        });
        for (rank, (first, error, zero)) in results.into_iter().enumerate() {
            assert_eq!(first, 1);
            assert!(
                matches!(&error, collective::Error::Remote { rank: 1, reason } if reason.contains("exists")),
                "{error}"
            );
            assert_eq!(zero, (rank == 0).then_some(5));
        }
    }
}

#[test]
fn several_machines_reduce_inside_first() {
    fn check<T: Reference + From<u8>>(group: &ProcessGroup, op: ReduceOp, count: usize) {
        // Small whole numbers: exact in every order and in every type.
        let value = |rank: usize, i: usize| T::from(((i * 7 + rank * 3) % 5 + 1) as u8);
        let all: Vec<Vec<T>> =
            (0..group.world_size()).map(|rank| (0..count).map(|i| value(rank, i)).collect()).collect();
        let mut buffer = all[group.rank()].clone();
        group.all_reduce(&mut buffer, op).unwrap();
        assert_eq!(buffer, serial(op, &all), "{op:?} of {count} {:?}", T::DTYPE);
    }
    // Two full machines and one with a single rank.
    world(Kind::Machines, 5, options(), |group| {
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
        // The mean rounds once, at the end, whatever the way.
        let mut means = vec![f16::from_f32(group.rank() as f32 + 0.5); 50_000];
        group.all_reduce(&mut means, ReduceOp::Mean).unwrap();
        assert!(means.iter().all(|mean| *mean == f16::from_f32(2.5)));
    });
}

#[test]
fn the_transport_is_chosen_by_where_the_ranks_are() {
    for (kind, name) in
        [(Kind::Tcp, "tcp"), (Kind::Shm, "shm"), (Kind::Thread, "thread"), (Kind::Machines, "shm+tcp")]
    {
        assert_eq!(world(kind, 3, options(), |group| group.transport()), [name; 3]);
    }
}

#[test]
fn hundreds_of_ranks_meet() {
    let sums = world(Kind::Tcp, 200, options(), |group| {
        let mut sum = [1i64];
        group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        sum[0]
    });
    assert_eq!(sums, [200; 200]);
}
