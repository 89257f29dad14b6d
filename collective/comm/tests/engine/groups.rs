//! Process groups: objects, sub-groups, background calls, `run_on`, and large worlds.

use crate::common::{KINDS, Kind, in_every_kind, options, world};
use burn_ddp_comm::ReduceOp;

#[test]
fn objects_are_broadcast_and_gathered() {
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
fn sub_groups_can_be_split_again() {
    for kind in KINDS {
        world(kind, 6, options(), |group| {
            let rank = group.rank();
            // Odd and even ranks; the key reverses the order.
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
            // The whole group stays usable.
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
            // A blocking call follows all calls that were started before it.
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
            let root = group.broadcast_async(vec![group.rank() as i64; 2], 1).unwrap();
            let ranks = group.all_gather_async(vec![group.rank() as i64]).unwrap();
            group.barrier_async().unwrap().wait().unwrap();
            assert_eq!(root.wait().unwrap(), [1, 1]);
            assert_eq!(ranks.wait().unwrap().concat(), [0, 1, 2]);
        });
    }
}

#[test]
fn run_on_returns_one_ranks_result_to_all() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let results = world(kind, 3, options(), |group| {
            let file = folder.path().join("once");
            let once = || std::fs::File::create_new(&file).map(|_| group.rank());
            let first = group.run_on(1, once).unwrap();
            let error = group.run_on(1, once).unwrap_err();
            let zero = group.on_rank_zero(|| 5);
            // The group stays usable.
            group.barrier().unwrap();
            (first, error, zero)
        });
        for (rank, (first, error, zero)) in results.into_iter().enumerate() {
            assert_eq!(first, 1);
            assert!(
                matches!(&error, burn_ddp_comm::Error::Remote { rank: 1, reason } if reason.contains("exists")),
                "{error}"
            );
            assert_eq!(zero, (rank == 0).then_some(5));
        }
    }
}

#[test]
fn the_transport_depends_on_the_placement_of_ranks() {
    for (kind, name) in
        [(Kind::Tcp, "tcp"), (Kind::Shm, "shm"), (Kind::Thread, "thread"), (Kind::Hierarchical, "shm+tcp")]
    {
        assert_eq!(world(kind, 3, options(), |group| group.transport()), [name; 3]);
    }
}

#[test]
fn worlds_of_hundreds_of_ranks_connect() {
    let sums = world(Kind::Tcp, 200, options(), |group| {
        let mut sum = [1i64];
        group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        sum[0]
    });
    assert_eq!(sums, [200; 200]);
}

#[test]
fn destroying_a_sub_group_does_not_affect_others() {
    for kind in KINDS {
        world(kind, 3, options(), |group| {
            let part = group.split(0, 0).unwrap();
            let mut sum = [1i64];
            part.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            part.destroy();
            if group.rank() == 1 {
                // The others wait long enough that the server asks for their state.
                std::thread::sleep(std::time::Duration::from_millis(1500));
            }
            group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [9]);
        });
    }
}

#[test]
fn a_call_names_the_rank_that_has_destroyed_the_group() {
    in_every_kind(|kind| {
        let errors = world(kind, 2, options(), |group| {
            let part = group.split(0, 0).unwrap();
            part.barrier().unwrap();
            // Keeps the transport open.
            let _clone = part.clone();
            if group.rank() == 0 {
                part.destroy();
                // Busy, not lost.
                std::thread::sleep(std::time::Duration::from_secs(4));
                return group.barrier().unwrap_err();
            }
            part.barrier().unwrap_err()
        });
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("rank 0 left the group") && text.contains("barrier #2"), "{text}");
        }
    });
}
