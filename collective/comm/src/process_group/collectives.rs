//! Collectives and point-to-point messages on slices of numbers.

use super::ProcessGroup;
use crate::{Call, Communicator, DType, Element, Error, ReduceOp, Result};
use bytemuck::{cast_slice, cast_slice_mut};

impl ProcessGroup {
    /// Reduces the buffers of all ranks in place; every rank ends with the same bits.
    ///
    /// The order of the reduction depends on the transport: see [`Communicator`](crate::Communicator).
    ///
    /// # Errors
    /// If the ranks' calls differ, a rank fails or exits, or the time-out expires.
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let spec = Call::new("all_reduce", T::DTYPE, buffer.len()).reduce(op);
        self.run(spec, |comm, call| comm.all_reduce(call, cast_slice_mut(buffer)))
    }

    /// Reduces the buffers of all ranks in place on rank `root`; others are unchanged.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no rank `root`; those of [`ProcessGroup::all_reduce`].
    pub fn reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp, root: usize) -> Result<()> {
        let spec = Call::new("reduce", T::DTYPE, buffer.len()).reduce(op).root(root);
        self.run(spec, |comm, call| comm.reduce(call, cast_slice_mut(buffer)))
    }

    /// Reduces the buffers of all ranks and leaves the r-th of n equal parts on rank r.
    ///
    /// The part is at its place in this rank's buffer, and is returned. The rest of the buffer is unchanged.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the length is not a multiple of the world size; those of
    /// [`ProcessGroup::all_reduce`].
    pub fn reduce_scatter<'a, T: Element>(&self, buffer: &'a mut [T], op: ReduceOp) -> Result<&'a mut [T]> {
        let size = self.world_size();
        if !buffer.len().is_multiple_of(size) {
            return Err(Error::Invalid(format!(
                "reduce_scatter of {} elements over {size} ranks: the parts would not be equal; pad the buffer",
                buffer.len()
            )));
        }
        let spec = Call::new("reduce_scatter", T::DTYPE, buffer.len()).reduce(op);
        self.run(spec, |comm, call| comm.reduce_scatter(call, cast_slice_mut(buffer)))?;
        let part = self.world().part(buffer.len());
        Ok(&mut buffer[part])
    }

    /// Copies the buffer of rank `root` into the buffers of all ranks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no rank `root`; those of [`ProcessGroup::all_reduce`].
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let spec = Call::new("broadcast", T::DTYPE, buffer.len()).root(root);
        self.run(spec, |comm, call| comm.broadcast(call, cast_slice_mut(buffer)))
    }

    /// Every rank's `mine`, in rank order. All must have the same length.
    ///
    /// [`ProcessGroup::all_gather_v`] is for different lengths.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::all_reduce`].
    pub fn all_gather<T: Element>(&self, mine: &[T]) -> Result<Vec<Vec<T>>> {
        let mut all = vec![T::zeroed(); mine.len() * self.world_size()];
        let spec = Call::new("all_gather", T::DTYPE, mine.len());
        self.run(spec, |comm, call| comm.all_gather(call, cast_slice(mine), cast_slice_mut(&mut all)))?;
        Ok(self.cut(&all, mine.len()))
    }

    /// Every rank's `mine`, in rank order. The lengths may differ.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::all_reduce`].
    pub fn all_gather_v<T: Element>(&self, mine: &[T]) -> Result<Vec<Vec<T>>> {
        self.with_permit(|group| {
            let lengths = group.all_gather(&[mine.len() as i64])?.concat();
            let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
            let mut padded = mine.to_vec();
            padded.resize(longest, T::zeroed());
            let mut all = group.all_gather(&padded)?;
            all.iter_mut().zip(lengths).for_each(|(slot, length)| slot.truncate(length as usize));
            Ok(all)
        })
    }

    /// Every rank's `mine` in rank order on rank `root`, `None` on the others.
    ///
    /// All must have the same length.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no rank `root`; those of [`ProcessGroup::all_reduce`].
    pub fn gather<T: Element>(&self, mine: &[T], root: usize) -> Result<Option<Vec<Vec<T>>>> {
        let here = self.rank() == root;
        let mut all = vec![T::zeroed(); if here { mine.len() * self.world_size() } else { 0 }];
        let spec = Call::new("gather", T::DTYPE, mine.len()).root(root);
        self.run(spec, |comm, call| comm.gather(call, cast_slice(mine), cast_slice_mut(&mut all)))?;
        Ok(here.then(|| self.cut(&all, mine.len())))
    }

    /// Splits `all` of rank `root` into equal parts and copies the r-th into `mine` of rank r.
    ///
    /// On rank `root`, `all` is `world_size` times as long as `mine`; on the other ranks it is ignored.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no rank `root` or `all` has another length; those of
    /// [`ProcessGroup::all_reduce`].
    pub fn scatter<T: Element>(&self, all: &[T], mine: &mut [T], root: usize) -> Result<()> {
        let all = if self.rank() == root { all } else { &[] };
        let wanted = mine.len() * self.world_size();
        if self.rank() == root && all.len() != wanted {
            return Err(Error::Invalid(format!(
                "scatter: the long buffer has {} elements; {} ranks with {} each need {wanted}",
                all.len(),
                self.world_size(),
                mine.len()
            )));
        }
        let spec = Call::new("scatter", T::DTYPE, mine.len()).root(root);
        self.run(spec, |comm, call| comm.scatter(call, cast_slice(all), cast_slice_mut(mine)))
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::all_reduce`].
    pub fn barrier(&self) -> Result<()> {
        self.run(Call::new("barrier", DType::U8, 0), |comm, call| comm.barrier(call))
    }

    /// Sends `data` to rank `to`, which must [`recv`](ProcessGroup::recv) it.
    ///
    /// Messages from one rank to another arrive in the order of sending. May return before the receiver has
    /// read the data.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `to` is this rank or does not exist; those of [`ProcessGroup::all_reduce`].
    pub fn send<T: Element>(&self, data: &[T], to: usize) -> Result<()> {
        let (from, to) = (self.rank(), self.peer("send to", to)?);
        let spec = Call::new("send_recv", T::DTYPE, data.len()).root(from);
        self.run_between(spec, Some([from, to]), |comm, call| comm.send(call, to, cast_slice(data)))
    }

    /// Receives a message of rank `from` into `data`, which must be of the same length.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `from` is this rank or does not exist; those of [`ProcessGroup::all_reduce`].
    pub fn recv<T: Element>(&self, data: &mut [T], from: usize) -> Result<()> {
        let (from, to) = (self.peer("receive from", from)?, self.rank());
        let spec = Call::new("send_recv", T::DTYPE, data.len()).root(from);
        self.run_between(spec, Some([from, to]), |comm, call| comm.recv(call, from, cast_slice_mut(data)))
    }

    fn run(&self, spec: Call, act: impl FnOnce(&dyn Communicator, &Call) -> Result<()>) -> Result<()> {
        self.run_between(spec, None, act)
    }

    /// Makes a collective call, or passes a message between two ranks of the group.
    fn run_between(
        &self,
        spec: Call,
        ranks: Option<[usize; 2]>,
        act: impl FnOnce(&dyn Communicator, &Call) -> Result<()>,
    ) -> Result<()> {
        let endpoints = ranks.map(|ranks| ranks.map(|rank| self.members()[rank]).into());
        self.with_permit(|group| group.shared.run(spec, endpoints, act))
    }

    fn peer(&self, what: &str, peer: usize) -> Result<usize> {
        let peer = self.shared.check_rank("rank", peer)?;
        if peer == self.rank() {
            return Err(Error::Invalid(format!("rank {peer} cannot {what} itself")));
        }
        Ok(peer)
    }

    fn cut<T: Element>(&self, all: &[T], length: usize) -> Vec<Vec<T>> {
        (0..self.world_size()).map(|rank| all[rank * length..(rank + 1) * length].to_vec()).collect()
    }
}
