//! Layout of the memory that the ranks of one machine share.
//!
//! ```text
//! Header              gates
//! Slot × world        state of each rank: one writer each
//! areas × world × 2   data of each rank: one writer each
//! ```
//!
//! The areas of a rank are used alternately: *small*, the inputs of small calls, from call to call; *input* and *output*
//! of large calls, and *message*, to one other rank, from piece to piece.
//!
//! All offsets follow from the world size and the constants of this file. No value read from the memory is
//! used as a size or an offset.

use super::wait::Word;
use crate::{
    Error, Result,
    transport::header::{HEADER, Header as CallHeader},
};
use memmap2::{MmapOptions, MmapRaw};
use std::{
    fs::File,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

// Under Miri, small areas cover the same code in less time.

/// Maximum size of a piece of a rank's input, and of its whole input to a small call.
pub const PIECE: usize = if cfg!(miri) { 1 << 10 } else { 128 << 10 };
/// Maximum size of a piece of a message.
pub const MESSAGE: usize = if cfg!(miri) { 1 << 10 } else { 64 << 10 };
/// Maximum number of ranks on one machine.
pub const MAX_WORLD: usize = 1024;

const PAGE: usize = 4096;
const _: () = assert!(size_of::<Header>() <= PAGE);

/// The gates of a group: split barriers, at which a rank arrives, continues, and waits for the others later. Every rank
/// passes the same gates in the same order.
///
/// A gate's word counts the arrivals of all ranks since the beginning. No rank arrives again at a gate that has not opened,
/// so that `n × world` arrivals mean that all ranks have arrived n times.
#[derive(Clone, Copy, Debug)]
pub enum GateId {
    /// The beginning of every call.
    Entry,
    /// The inputs of a piece are complete; for even and odd pieces.
    Input(usize),
    /// The work on a piece is complete; for even and odd pieces.
    Output(usize),
}

impl GateId {
    pub const COUNT: usize = 5;

    pub fn index(self) -> usize {
        match self {
            GateId::Entry => 0,
            GateId::Input(parity) => 1 + parity,
            GateId::Output(parity) => 3 + parity,
        }
    }
}

/// The first page.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Header {
    /// Identifies the memory, see [`super::super::shm`]; unused between threads.
    pub identity: [AtomicU64; 4],
    pub gates: [Word; GateId::COUNT],
}

/// State of one rank. Only that rank writes here, except for [`Outbox::taken`].
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Slot {
    /// Arrivals of this rank at gates since the beginning.
    pub steps: AtomicU32,
    /// [`ABSENT`], [`PRESENT`] or [`LEFT`].
    pub presence: AtomicU32,
    /// The core it ran on at its last arrival; a hint.
    pub core: AtomicU32,
    /// The last calls of this rank; even and odd ones.
    pub calls: [Announcement; 2],
    pub outbox: Outbox,
}

/// The header of a rank's call, readable by every rank, so that they can compare.
#[repr(C)]
#[derive(Debug)]
pub struct Announcement([AtomicU64; HEADER / 8]);

impl Announcement {
    pub fn publish(&self, header: CallHeader) {
        let words: [u64; HEADER / 8] = bytemuck::cast(header);
        self.0.iter().zip(words).for_each(|(shared, word)| shared.store(word, Relaxed));
    }

    /// The header as it was published at one moment.
    pub fn read(&self) -> CallHeader {
        bytemuck::cast::<[u64; HEADER / 8], _>(std::array::from_fn(|i| self.0[i].load(Relaxed)))
    }
}

/// The messages of one rank to others, one at a time.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Outbox {
    /// 1 + the receiver's rank.
    pub to: AtomicU32,
    pub call: Announcement,
    /// Number of pieces written by the sender since the beginning.
    pub posted: Word,
    /// Number of pieces read by the receivers since the beginning.
    pub taken: Word,
}

pub const ABSENT: u32 = 0;
pub const PRESENT: u32 = 1;
pub const LEFT: u32 = 2;

/// Typed access to the memory, which is mapped until dropped.
#[derive(Debug)]
pub struct Region {
    memory: MmapRaw,
    world: usize,
    name: &'static str,
}

impl Region {
    /// Maps the [`bytes`] of `world` ranks: of `file`, which cannot shrink, or without one new memory of this process,
    /// which is zeroed. `name` is that of the transport.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses the memory.
    pub fn map(file: Option<&File>, world: usize, name: &'static str) -> Result<Self> {
        let len = bytes(world);
        let mut options = MmapOptions::new();
        let memory = match file {
            Some(file) => options.len(len).map_raw(file),
            None => options.len(len).map_anon().map(MmapRaw::from),
        };
        let memory = memory.map_err(|e| Error::io(format!("mapping {len} bytes of shared memory"), &e))?;
        Ok(Region { memory, world, name })
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn world(&self) -> usize {
        self.world
    }

    pub fn header(&self) -> &Header {
        // SAFETY: the mapping begins with it. Every field is an atomic, valid with any bits, and no `&mut` to it is
        // ever made.
        unsafe { &*self.memory.as_ptr().cast() }
    }

    pub fn gate(&self, id: GateId) -> &Word {
        &self.header().gates[id.index()]
    }

    pub fn slot(&self, rank: usize) -> &Slot {
        assert!(rank < self.world);
        // SAFETY: in bounds by the assertion and `map`; otherwise as in `header`.
        unsafe { &*self.memory.as_ptr().add(PAGE).cast::<Slot>().add(rank) }
    }

    /// [`PIECE`] bytes.
    pub fn small(&self, rank: usize, parity: usize) -> *mut u8 {
        self.area(rank, parity, 0, PIECE)
    }

    /// [`PIECE`] bytes.
    pub fn input(&self, rank: usize, parity: usize) -> *mut u8 {
        self.area(rank, parity, PIECE, PIECE)
    }

    /// [`MESSAGE`] bytes.
    pub fn message(&self, rank: usize, parity: usize) -> *mut u8 {
        self.area(rank, parity, 2 * PIECE, MESSAGE)
    }

    /// [`portion`] bytes.
    pub fn output(&self, rank: usize, parity: usize) -> *mut u8 {
        self.area(rank, parity, 2 * PIECE + MESSAGE, portion(self.world))
    }

    fn area(&self, rank: usize, parity: usize, offset: usize, len: usize) -> *mut u8 {
        let start = slots_end(self.world) + (2 * rank + parity) * areas(self.world) + offset;
        assert!(start + len <= self.memory.len(), "beyond the shared memory");
        // SAFETY: in bounds, just checked.
        unsafe { self.memory.as_mut_ptr().add(start) }
    }
}

/// Maximum number of bytes of a piece that one rank reduces.
pub fn portion(world: usize) -> usize {
    PIECE.div_ceil(world).next_multiple_of(128)
}

fn slots_end(world: usize) -> usize {
    (PAGE + world * size_of::<Slot>()).next_multiple_of(PAGE)
}

/// Size of all areas of one parity of a rank.
fn areas(world: usize) -> usize {
    (2 * PIECE + MESSAGE + portion(world)).next_multiple_of(PAGE)
}

/// Size of a group's memory in bytes. Unused pages are never allocated.
pub fn bytes(world: usize) -> usize {
    slots_end(world) + world * 2 * areas(world)
}
