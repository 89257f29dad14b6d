//! Messages between two ranks, through the sender's outbox.
//!
//! An outbox holds two pieces. `send` of a message that fits returns at once; the sender's next message waits
//! until it is read, whatever its receiver. Messages do not pass the gates, so that collectives can proceed
//! while one waits.

use super::{LocalRank, Session, region::MESSAGE};
use crate::{
    Error, Result,
    communicator::{Call, Communicator},
    transport::{
        header::{Header, mismatch},
        method::Method,
    },
};
use std::{
    ops::Range,
    sync::atomic::Ordering::{Acquire, Relaxed, Release},
};

impl LocalRank {
    /// Sends `data` to rank `to`, which makes an equal call of [`LocalRank::receive_message`].
    ///
    /// # Errors
    /// As [`Communicator`](crate::Communicator).
    pub(super) fn send_message(&self, call: &Call, to: usize, data: &[u8]) -> Result<()> {
        self.check_peer(call, to)?;
        let call = Method::Message.of(call);
        let session = Session::open(self, call)?;
        let (region, rank) = (&self.region, self.rank);
        let outbox = &region.slot(rank).outbox;
        let before = (outbox.to.load(Relaxed) as usize).saturating_sub(1).min(region.world() - 1);
        session.wait_for(&outbox.taken, outbox.posted.load(), &|rank| *rank == before)?;
        outbox.call.publish(Header::new(call));
        outbox.to.store(to as u32 + 1, Release);
        for (piece, data) in pieces(data.len()).map(|range| &data[range]).enumerate() {
            // The area was last used by the piece before the previous one.
            if piece >= 2 {
                session.wait_for(&outbox.taken, outbox.posted.load().wrapping_sub(1), &|rank| *rank == to)?;
            }
            let area = region.message(rank, outbox.posted.load() as usize % 2);
            // SAFETY: this rank's area of `MESSAGE` bytes; its last reader has released it.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), area, data.len()) };
            outbox.posted.increment();
            outbox.posted.wake();
        }
        session.finish();
        Ok(())
    }

    /// Receives a message of rank `from` into `data`.
    ///
    /// # Errors
    /// As [`Communicator`](crate::Communicator).
    pub(super) fn receive_message(&self, call: &Call, from: usize, data: &mut [u8]) -> Result<()> {
        self.check_peer(call, from)?;
        let call = Method::Message.of(call);
        let session = Session::open(self, call)?;
        let region = &self.region;
        let outbox = &region.slot(from).outbox;
        for range in pieces(data.len()) {
            loop {
                // In this order, `to` is at least as new as the last posted piece, and all pieces for an
                // earlier receiver count as taken.
                let posted = outbox.posted.load();
                let mine = outbox.to.load(Acquire) as usize == self.world().rank + 1;
                if mine && posted != outbox.taken.load() {
                    break;
                }
                session.wait_for(&outbox.posted, posted.wrapping_add(1), &|rank| *rank == from)?;
            }
            if range.start == 0 {
                let (sent, own) = (outbox.call.read(), Header::new(call));
                if sent != own {
                    return Err(mismatch((from, &sent), (self.rank, &own)));
                }
            }
            let area = region.message(from, outbox.taken.load() as usize % 2);
            let data = &mut data[range];
            // SAFETY: the sender has written it and writes it again only after it is taken.
            unsafe { std::ptr::copy_nonoverlapping(area, data.as_mut_ptr(), data.len()) };
            outbox.taken.increment();
            outbox.taken.wake();
        }
        session.finish();
        Ok(())
    }

    fn check_peer(&self, call: &Call, peer: usize) -> Result<()> {
        let world = self.world();
        if peer < world.size && peer != world.rank {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "{call}: rank {} cannot pass messages to or from rank {peer}",
            world.rank
        )))
    }
}

/// Splits a message into pieces; an empty one has one piece.
fn pieces(len: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len.max(1)).step_by(MESSAGE).map(move |start| start..len.min(start + MESSAGE))
}
