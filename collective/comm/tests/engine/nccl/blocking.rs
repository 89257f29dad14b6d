//! NCCL calls that block until all ranks have come, as those may that connect the ranks.

use super::site::{HostSite, StandIn};
use burn_ddp_comm::{
    Call, DType, ReduceOp,
    communicator::World,
    transport::nccl::{DeviceSite, NcclCommunicator, UniqueId},
};
use std::{
    ffi::c_void,
    ptr::NonNull,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Whether a rank's calls return that calls these communicators in order from one thread.
fn returns(stand_in: &Arc<StandIn>, rank: usize, ids: [UniqueId; 2], order: [usize; 2]) -> bool {
    let stream = HostSite::new(stand_in, rank.to_string()).stream().unwrap();
    let world = World { rank, size: 2 };
    let communicators = ids
        .map(|id| Arc::new(NcclCommunicator::init(stand_in.library, &id, world, &stream, TIMEOUT).unwrap()));
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let calls = order.map(|index| communicators[index].clone());
        let stream = stream.clone();
        scope.spawn(move || {
            let memory = NonNull::<u8>::dangling().as_ptr().cast::<c_void>();
            let call = Call::new("all_reduce", DType::U8, 0).reduce(ReduceOp::Sum).numbered(0, TIMEOUT);
            // SAFETY: a call of no elements accesses no memory.
            let all = calls.iter().all(|nccl| unsafe {
                nccl.all_reduce(&call, memory.cast_const(), memory, stream.handle()).is_ok()
            });
            let _ = sender.send(all);
        });
        let returned = receiver.recv_timeout(Duration::from_secs(3));
        // Otherwise the thread does not end.
        communicators.iter().for_each(|communicator| communicator.abort());
        returned.unwrap_or(false)
    })
}

/// The mistake that one order of calls per device prevents.
#[test]
fn different_orders_on_two_ranks_are_noticed_only_if_calls_block() {
    for (settings, noticed) in [(&[][..], false), (&[("meet", -1, 1)][..], true)] {
        for (orders, wrong) in [([[0, 1], [0, 1]], false), ([[0, 1], [1, 0]], true)] {
            let stand_in = StandIn::of(settings).unwrap();
            let ids = [0; 2].map(|_| stand_in.library.unique_id().unwrap());
            let returned = thread::scope(|scope| {
                let other = scope.spawn(|| returns(&stand_in, 1, ids, orders[1]));
                returns(&stand_in, 0, ids, orders[0]) && other.join().unwrap()
            });
            assert_eq!(returned, !(noticed && wrong), "{settings:?}, {orders:?}");
        }
    }
}
