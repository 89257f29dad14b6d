//! Large all-gathers of many ranks: rank r receives from rank r − 1 and sends to rank r + 1 only.

use super::schedule::{Part, Schedule, Transfer, peers};
use crate::communicator::World;

/// Gathers all slots of `bytes` bytes in the caller's buffer, of which this rank's is filled.
///
/// In each step, a rank sends the slot that it received last.
pub(super) fn gather(world: World, bytes: usize) -> Schedule<'static> {
    let World { rank: me, size } = world;
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    // The slots of `rank` and of the ranks before it, around the ring.
    let slots = |rank: usize| {
        let slot = |step| (rank + size - step) % size;
        (0..size - 1).map(|step| Part::User(slot(step) * bytes..(slot(step) + 1) * bytes)).collect()
    };
    let plan = |peer| {
        let send = if peer == next { Transfer::new(slots(me), Some(1)) } else { Transfer::bare() };
        let recv = if peer == previous { Transfer::free(slots(previous)) } else { Transfer::bare() };
        (send, recv)
    };
    let neighbours = peers(world).filter(|peer| [next, previous].contains(peer));
    Schedule::new(0, neighbours, plan, move |_, duplexes| {
        let come = duplexes.iter().find(|duplex| duplex.peer == previous).map_or(0, |d| d.recv.moved);
        if let Some(duplex) = duplexes.iter_mut().find(|duplex| duplex.peer == next) {
            duplex.send.open(come + 1);
        }
    })
}
