//! Results of every collective, for every type and world size.

use super::{
    common::{Kind, options, world},
    site::{HostSite, Op, StandIn, attach, cause, collective, site},
};
use burn_ddp_comm::{
    Call, DType, DevicePath, Element, Error, Place, ProcessGroup, ReduceOp, transport::nccl::NcclCommunicator,
};
use half::{bf16, f16};
use std::{
    ffi::c_void,
    sync::{Arc, atomic::Ordering},
    thread,
};

/// Small integers, which every type represents and sums exactly.
fn value(rank: usize, i: usize) -> i32 {
    ((i * 3 + rank * 2) % 5 + 1) as i32
}

fn expected(op: ReduceOp, ranks: usize, i: usize) -> i32 {
    let values = (0..ranks).map(|rank| value(rank, i));
    match op {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Product => values.product(),
        ReduceOp::Min => values.min().unwrap(),
        ReduceOp::Max => values.max().unwrap(),
        ReduceOp::Mean => values.sum::<i32>() / ranks as i32,
    }
}

fn all<T: Element + PartialEq>(group: &ProcessGroup, from: fn(i32) -> T, ops: &[ReduceOp]) {
    let (rank, n) = (group.rank(), group.world_size());
    let length = 12 * n;
    let of = |rank: usize| (0..length).map(|i| from(value(rank, i))).collect::<Vec<T>>();
    let mine = of(rank);
    for op in ops {
        let whole: Vec<T> = (0..length).map(|i| from(expected(*op, n, i))).collect();
        assert_eq!(collective(group, &Op::AllReduce(*op), &mine).unwrap(), whole);
        let part = collective(group, &Op::ReduceScatter(*op), &mine).unwrap();
        assert_eq!(part, whole[rank * 12..(rank + 1) * 12]);
        let root = n - 1;
        let reduced = collective(group, &Op::Reduce(*op, root), &mine).unwrap();
        assert!(rank != root || reduced == whole);
    }
    for root in 0..n {
        assert_eq!(collective(group, &Op::Broadcast(root), &mine).unwrap(), of(root));
    }
    let gathered = collective(group, &Op::AllGather, &mine).unwrap();
    assert_eq!(gathered, (0..n).flat_map(of).collect::<Vec<T>>());
}

#[test]
fn collectives_equal_a_serial_reference_in_worlds_of_one_to_eight() {
    let exact = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];
    let small = &exact[..3];
    for n in 1..=8 {
        let stand_in = StandIn::new();
        world(Kind::Thread, n, options(), |group| {
            attach(&group, &stand_in);
            all::<f32>(&group, |x| x as f32, &exact);
            all::<f64>(&group, f64::from, &exact);
            all::<f16>(&group, |x| f16::from_f32(x as f32), small);
            all::<bf16>(&group, |x| bf16::from_f32(x as f32), small);
            all::<i32>(&group, |x| x, &[&exact[..], &[ReduceOp::Mean]].concat());
            all::<i64>(&group, i64::from, &exact);
            all::<u8>(&group, |x| x as u8, small);
            let mean = collective(&group, &Op::AllReduce(ReduceOp::Mean), &[group.rank() as f32]).unwrap();
            assert_eq!(mean, [(n - 1) as f32 / 2.0]);
            group.destroy();
        });
    }
}

#[test]
fn nccl_works_with_every_control_plane() {
    for kind in [Kind::Tcp, Kind::Shm, Kind::Thread, Kind::Hierarchical] {
        let stand_in = StandIn::new();
        world(kind, 4, options(), |group| {
            attach(&group, &stand_in);
            let sum = collective(&group, &Op::AllReduce(ReduceOp::Sum), &[group.rank() as f32]).unwrap();
            assert_eq!(sum, [6.0]);
            // Calls on host memory work as before.
            let mut host = [1i64];
            group.all_reduce(&mut host, ReduceOp::Sum).unwrap();
            assert_eq!(host, [4]);
            group.destroy();
        });
    }
}

#[test]
fn sub_groups_have_their_own_communicator() {
    let stand_in = StandIn::new();
    world(Kind::Shm, 4, options(), |group| {
        attach(&group, &stand_in);
        let half = group.split(group.rank() as u64 % 2, 0).unwrap();
        let sum = collective(&half, &Op::AllReduce(ReduceOp::Sum), &[group.rank() as f32]).unwrap();
        assert_eq!(sum, [if group.rank() % 2 == 0 { 2.0 } else { 4.0 }]);
        // A group of one rank does not use NCCL.
        let alone = group.split(group.rank() as u64, 0).unwrap();
        assert!(alone.device().is_none());
        drop(half);
        let sum = collective(&group, &Op::AllReduce(ReduceOp::Sum), &[1.0f32]).unwrap();
        assert_eq!(sum, [4.0]);
        group.destroy();
    });
    let ids = stand_in.log().iter().filter(|line| *line == "GetUniqueId").count();
    assert_eq!(ids, 3);
}

/// An all-reduce of no elements, which accesses no memory.
fn nothing() -> Call {
    Call::new("all_reduce", DType::U8, 0).reduce(ReduceOp::Sum)
}

fn reduce_nothing(nccl: &NcclCommunicator, call: &Call, stream: *mut c_void) -> burn_ddp_comm::Result<()> {
    let memory = std::ptr::NonNull::<u8>::dangling().as_ptr();
    // SAFETY: a call of no elements accesses no memory.
    unsafe { nccl.all_reduce(call, memory.cast_const().cast(), memory.cast(), stream) }
}

#[test]
fn the_host_does_not_wait_if_the_device_orders_streams() {
    // Each call takes 50 ms on the device.
    let stand_in = StandIn::of(&[("busy", -1, 50)]).unwrap();
    world(Kind::Thread, 2, options(), |group| {
        for orders in [true, false] {
            let group = group.split(0, 0).unwrap();
            let device = HostSite { orders, ..HostSite::new(&stand_in, group.rank().to_string()) };
            assert!(matches!(group.attach(Ok(Arc::new(device))).unwrap(), DevicePath::Nccl(_)));
            let before = std::time::Instant::now();
            let pending = group.run_on_device(nothing(), Box::new(()), reduce_nothing).unwrap();
            let returned = before.elapsed();
            pending.wait().unwrap();
            assert!(before.elapsed().as_millis() >= 50);
            // If the device does not order streams, the host has waited.
            assert!(orders || returned.as_millis() >= 50);
        }
    });
}

#[test]
fn started_calls_hold_the_device_only_on_request() {
    let stand_in = StandIn::new();
    world(Kind::Shm, 2, options(), |group| {
        let device = HostSite::new(&stand_in, group.rank().to_string());
        let held = device.held.clone();
        assert!(matches!(group.attach(Ok(Arc::new(device))).unwrap(), DevicePath::Nccl(_)));
        let started: Vec<_> =
            (0..3).map(|_| group.start_on_device(nothing(), Box::new(()), reduce_nothing).unwrap()).collect();
        // A blocking call follows the started ones and holds the device itself.
        group.run_on_device(nothing(), Box::new(()), reduce_nothing).unwrap().wait().unwrap();
        assert_eq!(held.load(Ordering::SeqCst), 1);
        for pending in started {
            pending.hold_device().unwrap();
            pending.wait().unwrap();
        }
        assert_eq!(held.load(Ordering::SeqCst), 4);
        group.destroy();
    });
}

/// As the thread does that launches kernels.
#[test]
fn another_thread_enqueues_placed_calls() {
    let stand_in = StandIn::new();
    world(Kind::Shm, 2, options(), |group| {
        attach(&group, &stand_in);
        let places: Vec<_> =
            (0..3).map(|_| group.place_on_device(nothing()).unwrap().expect("a place")).collect();
        let enqueue = |place: Place| place.enqueue(Box::new(()), reduce_nothing).unwrap();
        let enqueued = thread::spawn(move || places.into_iter().map(enqueue).collect::<Vec<_>>());
        for pending in enqueued.join().unwrap() {
            pending.wait().unwrap();
        }
        assert_eq!(collective(&group, &Op::AllGather, &[1u8]).unwrap(), [1, 1]);
        group.destroy();
    });
}

#[test]
fn a_place_that_stays_empty_fails_the_group_on_all_ranks() {
    let stand_in = StandIn::new();
    world(Kind::Shm, 2, options(), |group| {
        attach(&group, &stand_in);
        let place = group.place_on_device(nothing()).unwrap().expect("a place");
        group.barrier().unwrap();
        match group.rank() {
            0 => drop(place),
            _ => _ = place.enqueue(Box::new(()), reduce_nothing),
        }
        let error = cause(&group).to_string();
        assert!(error.contains("its input was not computed"), "{error}");
    });
}

/// Rank 0 enqueues a large call late.
#[test]
fn groups_of_a_device_enqueue_in_the_order_of_the_calls() {
    enqueue_in_order(&[("slow_large_call", 0, 200)]);
    // Each call blocks until all ranks have come.
    enqueue_in_order(&[("slow_large_call", 0, 200), ("meet", -1, 100)]);
}

fn enqueue_in_order(settings: &[(&str, i32, u64)]) {
    let stand_in = StandIn::of(settings).unwrap();
    world(Kind::Shm, 2, options(), |group| {
        attach(&group, &stand_in);
        let other = group.split(0, group.rank() as i64).unwrap();
        let mut values = vec![1u8; 1_000_001];
        let (call, at) = (Call { count: values.len(), ..nothing() }, values.as_mut_ptr());
        let large = group.start_on_device(call, Box::new(values), |nccl, call, stream| {
            // SAFETY: the call keeps the memory.
            unsafe { nccl.all_reduce(call, at.cast_const().cast(), at.cast(), stream) }
        });
        assert_eq!(collective(&other, &Op::Broadcast(0), &[1.0f32]).unwrap(), [1.0]);
        large.unwrap().wait().unwrap();
        // A call of an operation is enqueued in the operation's place.
        let inside = group.start(|group| collective(group, &Op::AllGather, &[1u8])).unwrap();
        collective(&other, &Op::Broadcast(0), &[1.0f32]).unwrap();
        assert_eq!(inside.wait().unwrap(), [1, 1]);
        group.destroy();
    });
    for rank in 0..2 {
        let calls = stand_in.calls(rank);
        assert_eq!(calls[2..6], ["AllReduce", "Broadcast", "AllGather", "Broadcast"], "{calls:?}");
    }
}

#[test]
fn a_device_must_be_attached_exactly_once() {
    let stand_in = StandIn::new();
    world(Kind::Thread, 2, options(), |group| {
        let error = collective(&group, &Op::AllGather, &[1.0f32]).unwrap_err();
        assert!(error.to_string().contains("no device transport"), "{error}");
        attach(&group, &stand_in);
        assert_eq!(group.device().as_deref(), Some("pretended:0"));
        let again = group.attach(site(&stand_in, group.rank()));
        assert!(matches!(again, Err(Error::Invalid(why)) if why.contains("already")));
    });
}
