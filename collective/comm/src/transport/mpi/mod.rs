//! Transport over an MPI library, which CPU clusters have and which supports their networks.
//!
//! MPI moves the bytes and this crate reduces them: `MPI_Allreduce` may add in any order, which depends on
//! the number of ranks on a machine, and has no half types. An all-reduce is an `MPI_Ialltoall` of parts, a
//! reduction in rank order, and an `MPI_Iallgather` of the results. It transfers as many bytes as the best
//! algorithm.
//!
//! Only non-blocking operations are used, so that all of them have a deadline. The ranks exchange the header
//! of a call before its data, so that different calls are an error.
//!
//! Standard: MPI 3.1, chapters 5.12 (non-blocking collectives) and 12.4 (threads).

mod library;
mod meet;
mod operation;

pub(crate) use meet::{address, look_up, publish, world};

use super::{
    header::{HEADER, Header, mismatch},
    method::{Deadline, Method, MethodCall},
};
use crate::{
    Error, Result,
    communicator::{Call, Communicator, World},
    reduce::{Reduction, reduce_with},
};
use bytemuck::{bytes_of, pod_read_unaligned};
use library::{Library, check};
use mpi::ffi;
use operation::{Memory, run};
use std::{
    ffi::c_int,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// Size in bytes of the pieces in which buffers are transferred; MPI counts in `c_int`.
const PIECE: usize = 1 << 20;

/// An MPI communicator, which any thread may use: MPI runs with `MPI_THREAD_MULTIPLE`.
#[derive(Clone, Copy, Debug)]
struct Handle(ffi::MPI_Comm);
// SAFETY: see above.
unsafe impl Send for Handle {}
// SAFETY: see above.
unsafe impl Sync for Handle {}

/// One rank of a group of MPI processes. The group makes one call at a time.
#[derive(Debug)]
pub(crate) struct Mpi {
    world: World,
    handle: Handle,
    aborted: AtomicBool,
}

impl Mpi {
    fn new(world: World, handle: Handle) -> Self {
        Mpi { world, handle, aborted: AtomicBool::new(false) }
    }

    fn limits<'a>(&'a self, call: MethodCall<'a>) -> Deadline<'a> {
        Deadline::new(call, &self.aborted)
    }

    /// Gathers every rank's `send` on every rank, in rank order.
    fn gather_all(&self, limits: Deadline<'_>, send: Vec<u8>) -> Result<Memory> {
        let (n, recv) = (send.len() as c_int, send.len() * self.world.size);
        // SAFETY: `send` has n bytes, and the memory to receive has n of every rank.
        run(limits, Memory::new(send, recv), |from, to, request| unsafe {
            let bytes = ffi::RSMPI_UINT8_T;
            ffi::MPI_Iallgather(from, n, bytes, to, n, bytes, self.handle.0, request)
        })
    }

    /// Sends the r-th of n equal parts of every rank's `send` to rank r, in rank order.
    fn all_to_all(&self, limits: Deadline<'_>, send: Vec<u8>) -> Result<Memory> {
        let (n, recv) = ((send.len() / self.world.size) as c_int, send.len());
        // SAFETY: both memories have n bytes for every rank.
        run(limits, Memory::new(send, recv), |from, to, request| unsafe {
            let bytes = ffi::RSMPI_UINT8_T;
            ffi::MPI_Ialltoall(from, n, bytes, to, n, bytes, self.handle.0, request)
        })
    }

    /// The root's `piece` on every rank.
    fn broadcast_piece(&self, limits: Deadline<'_>, root: usize, piece: Vec<u8>) -> Result<Vec<u8>> {
        let n = piece.len() as c_int;
        let memory = Memory { recv: piece, ..Memory::default() };
        // SAFETY: the memory has n bytes.
        let memory = run(limits, memory, |_, both, request| unsafe {
            ffi::MPI_Ibcast(both, n, ffi::RSMPI_UINT8_T, root as i32, self.handle.0, request)
        })?;
        Ok(memory.recv)
    }

    /// Compares this rank's call with those of all others.
    fn agree(&self, limits: Deadline<'_>) -> Result<()> {
        let own = Header::new(limits.call);
        let all = self.gather_all(limits, bytes_of(&own).to_vec())?.recv;
        let mut others = all.chunks_exact(HEADER).enumerate();
        match others.find(|(_, other)| *other != bytes_of(&own)) {
            Some((rank, other)) => Err(self.mismatch(limits.call, rank, other)),
            None => Ok(()),
        }
    }

    /// The error for the header of another rank, of [`HEADER`] bytes.
    fn mismatch(&self, call: MethodCall<'_>, rank: usize, header: &[u8]) -> Error {
        mismatch((self.world.rank, &Header::new(call)), (rank, &pod_read_unaligned(header)))
    }

    /// Reduces this rank's part of `send`, which has an equal part for every rank.
    fn reduce_part(&self, limits: Deadline<'_>, reduction: Reduction, send: Vec<u8>) -> Result<Vec<u8>> {
        let parts = self.all_to_all(limits, send)?.recv;
        let part = |rank| &parts[World { rank, ..self.world }.part(parts.len())];
        let mut own = part(self.world.rank).to_vec();
        reduce_with(reduction, &mut own, &part, None, true);
        Ok(own)
    }
}

/// Creates the group of `members`, which are ranks of MPI's world, with this rank as number `rank`.
///
/// All members must call it with the same `group`.
///
/// # Errors
/// Those of [`Library::get`], [`Error::Timeout`] if not all members call it in time, or MPI's own.
pub(crate) fn connect(
    group: u64,
    members: &[usize],
    rank: usize,
    timeout: Duration,
) -> Result<Box<dyn Communicator>> {
    Library::get()?;
    // A tag that distinguishes groups that are created at the same time. Every MPI has 15 bits.
    let tag = (group % 0x7fff) as i32;
    let ranks: Vec<i32> = members.iter().map(|member| *member as i32).collect();
    // MPI cannot do this with a deadline, so that a thread does it, which may be left behind.
    let (done, made) = mpsc::channel();
    (thread::Builder::new().spawn(move || done.send(create(&ranks, tag))))
        .map_err(|error| Error::io("start a thread for MPI", &error))?;
    let handle = made.recv_timeout(timeout).map_err(|_| {
        Library::abandon();
        let absent = "some rank of the group did not take part";
        Error::timeout("the making of an MPI communicator", timeout, absent)
    })??;
    Ok(Box::new(Mpi::new(World { rank, size: members.len() }, handle)))
}

/// Creates the communicator. Blocks until all its ranks do.
fn create(ranks: &[i32], tag: i32) -> Result<Handle> {
    // SAFETY: MPI is started; the ranks are ranks of its world, checked when the job began.
    unsafe {
        let (mut all, mut some) = (ffi::RSMPI_GROUP_NULL, ffi::RSMPI_GROUP_NULL);
        let mut comm = ffi::RSMPI_COMM_NULL;
        check("ask MPI for its ranks", ffi::MPI_Comm_group(ffi::RSMPI_COMM_WORLD, &mut all))?;
        let count = ranks.len() as i32;
        check("make an MPI group", ffi::MPI_Group_incl(all, count, ranks.as_ptr(), &mut some))?;
        let made = ffi::MPI_Comm_create_group(ffi::RSMPI_COMM_WORLD, some, tag, &mut comm);
        ffi::MPI_Group_free(&mut some);
        ffi::MPI_Group_free(&mut all);
        check("make an MPI communicator", made)?;
        check("let MPI errors be returned", ffi::MPI_Comm_set_errhandler(comm, ffi::RSMPI_ERRORS_RETURN))?;
        Ok(Handle(comm))
    }
}

impl Communicator for Mpi {
    fn world(&self) -> World {
        self.world
    }

    fn name(&self) -> &'static str {
        "mpi"
    }

    fn all_reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let call = Method::AllReduce.of(call);
        let (reduction, limits) = (Reduction::of(&call, self.world)?, self.limits(call));
        let size = self.world.size;
        self.agree(limits)?;
        for piece in buffer.chunks_mut(PIECE) {
            // Padded so that every rank reduces the same number of elements.
            let part = piece.len().div_ceil(size).next_multiple_of(call.dtype.size());
            let mut send = piece.to_vec();
            send.resize(part * size, 0);
            let own = self.reduce_part(limits, reduction, send)?;
            let all = self.gather_all(limits, own)?.recv;
            piece.copy_from_slice(&all[..piece.len()]);
        }
        Ok(())
    }

    fn reduce_scatter(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let call = Method::ReduceScatter.of(call);
        let (reduction, limits) = (Reduction::of(&call, self.world)?, self.limits(call));
        let size = self.world.size;
        self.agree(limits)?;
        let own = self.world.part(buffer.len());
        let step = (PIECE / size).next_multiple_of(call.dtype.size());
        for from in (0..own.len()).step_by(step) {
            let to = (from + step).min(own.len());
            let parts = buffer.chunks_exact(own.len());
            let send = parts.flat_map(|part| &part[from..to]).copied().collect();
            let reduced = self.reduce_part(limits, reduction, send)?;
            buffer[own.start + from..own.start + to].copy_from_slice(&reduced);
        }
        Ok(())
    }

    fn broadcast(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let call = Method::Broadcast.of(call);
        let (limits, root) = (self.limits(call), call.root.unwrap_or_default());
        self.agree(limits)?;
        for piece in buffer.chunks_mut(PIECE) {
            let received = self.broadcast_piece(limits, root, piece.to_vec())?;
            piece.copy_from_slice(&received);
        }
        Ok(())
    }

    fn all_gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        let call = Method::AllGather.of(call);
        let limits = self.limits(call);
        self.agree(limits)?;
        for (at, piece) in mine.chunks(PIECE).enumerate() {
            let all = self.gather_all(limits, piece.to_vec())?.recv;
            for (rank, piece) in all.chunks_exact(piece.len()).enumerate() {
                let from = rank * mine.len() + at * PIECE;
                out[from..from + piece.len()].copy_from_slice(piece);
            }
        }
        Ok(())
    }

    fn barrier(&self, call: &Call) -> Result<()> {
        let call = Method::Barrier.of(call);
        // No rank has all headers before all ranks have called.
        self.agree(self.limits(call))
    }

    fn send(&self, call: &Call, to: usize, data: &[u8]) -> Result<()> {
        let call = Method::Message.of(call);
        let limits = self.limits(call);
        let head = Header::new(call);
        for piece in std::iter::once(bytes_of(&head)).chain(data.chunks(PIECE)) {
            let n = piece.len() as c_int;
            // SAFETY: the memory has n bytes.
            run(limits, Memory::new(piece.to_vec(), 0), |from, _, request| unsafe {
                ffi::MPI_Isend(from, n, ffi::RSMPI_UINT8_T, to as i32, 0, self.handle.0, request)
            })?;
        }
        Ok(())
    }

    fn recv(&self, call: &Call, from: usize, data: &mut [u8]) -> Result<()> {
        let call = Method::Message.of(call);
        let limits = self.limits(call);
        let receive = |bytes: usize| {
            let n = bytes as c_int;
            // SAFETY: the memory has n bytes.
            let memory = run(limits, Memory::new(Vec::new(), bytes), |_, to, request| unsafe {
                ffi::MPI_Irecv(to, n, ffi::RSMPI_UINT8_T, from as i32, 0, self.handle.0, request)
            })?;
            Ok(memory.recv)
        };
        let head = receive(HEADER)?;
        if head != bytes_of(&Header::new(call)) {
            return Err(self.mismatch(call, from, &head));
        }
        for piece in data.chunks_mut(PIECE) {
            piece.copy_from_slice(&receive(piece.len())?);
        }
        Ok(())
    }

    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
    }
}
