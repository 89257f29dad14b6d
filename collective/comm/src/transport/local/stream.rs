//! Transfers the data of a call through the shared memory, piece by piece.
//!
//! Each rank writes only its own areas, and reads those of the others only between gates:
//!
//! 1. *fill*: a rank writes its input area, then arrives at the input gate.
//! 2. *work*: when all have arrived there, it reads all input areas and may write its output area,
//!    then arrives at the output gate.
//! 3. *drain*: when all have arrived there, it reads all output areas.
//!
//! There are two of each area, so that a rank fills piece k+1 before it waits for piece k. It has then passed
//! the output gate of piece k−1, so that no rank still reads the input area that it fills. It writes the
//! output area of piece k+1 only after the input gate of that piece, at which all ranks arrive after they
//! have drained piece k−1. The gate before the work on the first piece is the entry gate, which no rank
//! passes before all have arrived with equal calls.
//!
//! A small call has its own areas, two per rank and used alternately, and no output gate. A rank that fills
//! its area for call s+2 has passed the entry gate of call s+1, at which all ranks arrive after their work on
//! call s.

use super::{
    LocalRank,
    region::{GateId, PIECE, SMALL, portion},
};
use crate::{Result, transport::method::MethodCall};

/// The stages of a collective on a piece. Every rank has the same number of pieces.
pub trait Stages {
    /// Writes this rank's part of `piece` into its input area.
    fn fill(&mut self, piece: usize, input: &mut [u8]);
    /// Reads the inputs of all ranks; may write this rank's output area.
    fn work(&mut self, piece: usize, inputs: &Areas<'_>, output: &mut [u8]);
    /// Reads the outputs of all ranks.
    fn drain(&mut self, _piece: usize, _outputs: &Areas<'_>) {}
}

/// The same area of every rank, for reading.
pub type Areas<'a> = dyn Fn(usize) -> &'a [u8] + 'a;

impl LocalRank {
    /// Runs a call in one exchange, with areas of [`SMALL`] bytes.
    ///
    /// # Errors
    /// As [`Communicator`](crate::Communicator).
    pub(super) fn exchange(&self, call: MethodCall<'_>, stages: &mut dyn Stages) -> Result<()> {
        let mut session = self.begin(call)?;
        let (parity, rank) = (session.parity(), self.rank);
        // SAFETY: this rank's area, which no rank reads now, see the module documentation.
        stages.fill(0, unsafe { writable(self.region.small(rank, parity), SMALL) });
        session.enter()?;
        // SAFETY: all ranks have filled their areas, and fill them again only after this call.
        let of = |rank| unsafe { readable(self.region.small(rank, parity), SMALL) };
        stages.work(0, &of, &mut []);
        session.finish();
        Ok(())
    }

    /// Runs a call of `pieces` pieces, at least one, with areas of [`PIECE`] and [`portion`] bytes.
    ///
    /// # Errors
    /// As [`Communicator`](crate::Communicator).
    pub(super) fn stream(&self, call: MethodCall<'_>, pieces: usize, stages: &mut dyn Stages) -> Result<()> {
        let mut session = self.begin(call)?;
        let (region, rank) = (&self.region, self.rank);
        let portion = portion(region.world());
        // SAFETY: this rank's area, which no rank reads now, see the module documentation.
        stages.fill(0, unsafe { writable(region.input(rank, 0), PIECE) });
        let mut filled = session.arrive(GateId::Entry);
        for piece in 0..pieces {
            let (parity, next) = (piece % 2, (piece + 1) % 2);
            let current = filled;
            if piece + 1 < pieces {
                // SAFETY: as above.
                stages.fill(piece + 1, unsafe { writable(region.input(rank, next), PIECE) });
                filled = session.arrive(GateId::Input(next));
            }
            session.wait(current)?;
            if piece == 0 {
                session.agree()?;
            }
            // SAFETY: all ranks have filled these areas and write them again only after all have
            // arrived at the output gate below; no rank reads this rank's output area before that.
            let inputs = |peer| unsafe { readable(region.input(peer, parity), PIECE) };
            let output = unsafe { writable(region.output(rank, parity), portion) };
            stages.work(piece, &inputs, output);
            let worked = session.arrive(GateId::Output(parity));
            session.wait(worked)?;
            // SAFETY: all ranks have written these areas and write them again only after all have
            // arrived at the input gate of piece + 2, or at the entry gate of the next call.
            let outputs = |peer| unsafe { readable(region.output(peer, parity), portion) };
            stages.drain(piece, &outputs);
        }
        session.finish();
        Ok(())
    }
}

/// # Safety
/// `area` is valid for `len` bytes, and nothing writes to it during `'a`.
unsafe fn readable<'a>(area: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts(area, len) }
}

/// # Safety
/// `area` is valid for `len` bytes, and nothing else reads or writes it during `'a`.
unsafe fn writable<'a>(area: *mut u8, len: usize) -> &'a mut [u8] {
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(area, len) }
}
