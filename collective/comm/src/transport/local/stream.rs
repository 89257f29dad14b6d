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
    LocalRank, Session,
    region::{GateId, PIECE, portion},
};
use crate::{Result, transport::method::MethodCall};
use std::ops::Range;

/// Two cache lines, which processors fetch together; a multiple of every element's size.
pub const LINE: usize = 128;

/// A stage of a collective on one piece.
pub enum Stage<'a, 'i> {
    /// Write this rank's part of the piece into its input area.
    Fill(&'a mut [u8]),
    /// Read the inputs of all ranks. May write this rank's output area.
    Work(&'a Areas<'i>, &'a mut [u8]),
    /// Read the outputs of all ranks.
    Drain(&'a Areas<'i>),
}

/// The same area of every rank, for reading.
pub type Areas<'a> = dyn Fn(usize) -> &'a [u8] + 'a;

/// Executes a stage on a piece, a range of bytes.
pub type Execute<'a> = dyn FnMut(Range<usize>, Stage<'_, '_>) + 'a;

/// A buffer in pieces of equal size, except for the last. Every rank has the same number of pieces.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    bytes: usize,
    /// Bytes of each piece.
    size: usize,
    /// At least one, which may be empty.
    pub count: usize,
}

impl Pieces {
    /// Splits into pieces of at most `most` bytes, which is a multiple of [`LINE`].
    pub fn new(bytes: usize, most: usize) -> Self {
        let size = bytes.div_ceil(bytes.div_ceil(most).max(1)).next_multiple_of(LINE);
        Pieces { bytes, size, count: bytes.div_ceil(size.max(1)).max(1) }
    }

    pub fn range(&self, piece: usize) -> Range<usize> {
        let start = (piece * self.size).min(self.bytes);
        start..(start + self.size).min(self.bytes)
    }
}

impl LocalRank {
    /// Runs a call in one exchange if it has one piece, otherwise piece by piece.
    ///
    /// # Errors
    /// As [`Communicator`](crate::Communicator).
    pub(super) fn exchange_or_stream(
        &self,
        call: MethodCall<'_>,
        pieces: Pieces,
        mut execute: impl FnMut(Range<usize>, Stage<'_, '_>),
    ) -> Result<()> {
        match pieces.count {
            1 => self.exchange(call, pieces.bytes, &mut execute),
            _ => self.stream(call, pieces, &mut execute),
        }
    }

    /// Runs a call on `bytes` bytes in one exchange, with areas of [`PIECE`] bytes.
    ///
    /// # Errors
    /// As [`Communicator`](crate::Communicator).
    pub(super) fn exchange(
        &self,
        call: MethodCall<'_>,
        bytes: usize,
        execute: &mut Execute<'_>,
    ) -> Result<()> {
        let mut session = Session::begin(self, call)?;
        let (parity, rank) = (session.parity(), self.rank);
        // SAFETY: this rank's area, which no rank reads now, see the module documentation.
        let input = unsafe { writable(self.region.small(rank, parity), PIECE) };
        execute(0..bytes, Stage::Fill(input));
        session.enter()?;
        // SAFETY: all ranks have filled their areas, and fill them again only after this call.
        let of = |rank| unsafe { readable(self.region.small(rank, parity), PIECE) };
        execute(0..bytes, Stage::Work(&of, &mut []));
        session.finish();
        Ok(())
    }

    /// Runs a call piece by piece, with areas of [`PIECE`] and [`portion`] bytes.
    ///
    /// # Errors
    /// As [`Communicator`](crate::Communicator).
    pub(super) fn stream(
        &self,
        call: MethodCall<'_>,
        pieces: Pieces,
        execute: &mut Execute<'_>,
    ) -> Result<()> {
        let mut session = Session::begin(self, call)?;
        let (region, rank) = (&self.region, self.rank);
        let portion = portion(region.world());
        // SAFETY: this rank's area, which no rank reads now, see the module documentation.
        let first = unsafe { writable(region.input(rank, 0), PIECE) };
        execute(pieces.range(0), Stage::Fill(first));
        let mut filled = session.arrive(GateId::Entry);
        for piece in 0..pieces.count {
            let (parity, next) = (piece % 2, (piece + 1) % 2);
            let current = filled;
            if piece + 1 < pieces.count {
                // SAFETY: as above.
                let input = unsafe { writable(region.input(rank, next), PIECE) };
                execute(pieces.range(piece + 1), Stage::Fill(input));
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
            execute(pieces.range(piece), Stage::Work(&inputs, output));
            let worked = session.arrive(GateId::Output(parity));
            session.wait(worked)?;
            // SAFETY: all ranks have written these areas and write them again only after all have
            // arrived at the input gate of piece + 2, or at the entry gate of the next call.
            let outputs = |peer| unsafe { readable(region.output(peer, parity), portion) };
            execute(pieces.range(piece), Stage::Drain(&outputs));
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
