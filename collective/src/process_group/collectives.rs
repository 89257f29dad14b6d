//! The collectives and the messages between two ranks, on plain numbers.

use super::{ProcessGroup, inner::Spec};
use crate::{Element, Error, ReduceOp, Result};
use bytemuck::{cast_slice, cast_slice_mut};

impl ProcessGroup {
    /// In place: every rank ends with the reduction of all ranks' buffers, element by element in
    /// rank order. All ranks get the same bits.
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let spec = Spec::new::<T>("all_reduce", buffer.len()).reduce(op);
        self.run(spec, |comm, call| comm.all_reduce(call, cast_slice_mut(buffer)))
    }

    /// In place: rank `root` ends with the reduction of all ranks' buffers; the others keep theirs.
    pub fn reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp, root: usize) -> Result<()> {
        let root = self.inner.check_rank("root", root)?;
        let spec = Spec::new::<T>("reduce", buffer.len()).reduce(op).root(root);
        self.run(spec, |comm, call| comm.reduce(call, cast_slice_mut(buffer)))
    }

    /// In place: of the reduction of all ranks' buffers, cut into as many equal parts as there are
    /// ranks, rank r ends with the r-th, where it belongs in its buffer; that part is returned. The
    /// rest of the buffer is left as it was.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the length is no multiple of the world size.
    pub fn reduce_scatter<'a, T: Element>(&self, buffer: &'a mut [T], op: ReduceOp) -> Result<&'a mut [T]> {
        let (rank, size) = (self.rank(), self.world_size());
        if !buffer.len().is_multiple_of(size) {
            return Err(Error::Invalid(format!(
                "reduce_scatter of {} elements over {size} ranks: the parts would not be equal; pad the buffer",
                buffer.len()
            )));
        }
        let spec = Spec::new::<T>("reduce_scatter", buffer.len()).reduce(op);
        self.run(spec, |comm, call| comm.reduce_scatter(call, cast_slice_mut(buffer)))?;
        let part = buffer.len() / size;
        Ok(&mut buffer[rank * part..(rank + 1) * part])
    }

    /// In place: every rank ends with the buffer of rank `root`.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let root = self.inner.check_rank("root", root)?;
        let spec = Spec::new::<T>("broadcast", buffer.len()).root(root);
        self.run(spec, |comm, call| comm.broadcast(call, cast_slice_mut(buffer)))
    }

    /// Every rank's `mine`, in rank order. All must be of the same length; if they are not, use
    /// [`ProcessGroup::all_gather_v`].
    pub fn all_gather<T: Element>(&self, mine: &[T]) -> Result<Vec<Vec<T>>> {
        let mut all = vec![T::zeroed(); mine.len() * self.world_size()];
        self.all_gather_into(mine, &mut all)?;
        Ok(self.cut(&all, mine.len()))
    }

    /// The same into `all`, which is `world_size` times as long as `mine`.
    pub fn all_gather_into<T: Element>(&self, mine: &[T], all: &mut [T]) -> Result<()> {
        self.expect_length("all_gather_into", all.len(), mine.len())?;
        let spec = Spec::new::<T>("all_gather", mine.len());
        self.run(spec, |comm, call| comm.all_gather(call, cast_slice(mine), cast_slice_mut(all)))
    }

    /// Every rank's `mine`, in rank order, of any lengths.
    pub fn all_gather_v<T: Element>(&self, mine: &[T]) -> Result<Vec<Vec<T>>> {
        self.in_turn(|group| {
            let lengths = group.all_gather(&[mine.len() as i64])?.concat();
            let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
            let mut padded = mine.to_vec();
            padded.resize(longest, T::zeroed());
            let mut all = group.all_gather(&padded)?;
            all.iter_mut().zip(lengths).for_each(|(slot, length)| slot.truncate(length as usize));
            Ok(all)
        })
    }

    /// On rank `root` every rank's `mine`, in rank order; `None` on the others. All must be of the
    /// same length.
    pub fn gather<T: Element>(&self, mine: &[T], root: usize) -> Result<Option<Vec<Vec<T>>>> {
        let root = self.inner.check_rank("root", root)?;
        let here = self.rank() == root;
        let mut all = vec![T::zeroed(); if here { mine.len() * self.world_size() } else { 0 }];
        let spec = Spec::new::<T>("gather", mine.len()).root(root);
        self.run(spec, |comm, call| comm.gather(call, cast_slice(mine), cast_slice_mut(&mut all)))?;
        Ok(here.then(|| self.cut(&all, mine.len())))
    }

    /// Cuts `all` of rank `root`, which is `world_size` times as long as `mine`, into equal parts
    /// and gives rank r the r-th. What the others pass as `all` is ignored.
    pub fn scatter<T: Element>(&self, all: &[T], mine: &mut [T], root: usize) -> Result<()> {
        let root = self.inner.check_rank("root", root)?;
        let all = if self.rank() == root { all } else { &[] };
        if self.rank() == root {
            self.expect_length("scatter", all.len(), mine.len())?;
        }
        let spec = Spec::new::<T>("scatter", mine.len()).root(root);
        self.run(spec, |comm, call| comm.scatter(call, cast_slice(all), cast_slice_mut(mine)))
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        self.run(Spec::new::<u8>("barrier", 0), |comm, call| comm.barrier(call))
    }

    /// Sends `data` to rank `to`, which must [`recv`](ProcessGroup::recv) it. Messages from one
    /// rank to another come in the order sent. May return before the other has taken the data.
    pub fn send<T: Element>(&self, data: &[T], to: usize) -> Result<()> {
        let to = self.peer("send to", to)?;
        self.in_turn(|group| {
            let spec = Spec::new::<T>("send_recv", data.len());
            let inner = &group.inner;
            inner.pass(spec, inner.core.world.rank, to, |comm, call| comm.send(call, to, cast_slice(data)))
        })
    }

    /// Receives what rank `from` sends into `data`, which must be of the same length.
    pub fn recv<T: Element>(&self, data: &mut [T], from: usize) -> Result<()> {
        let from = self.peer("receive from", from)?;
        self.in_turn(|group| {
            let spec = Spec::new::<T>("send_recv", data.len());
            let inner = &group.inner;
            inner.pass(spec, from, inner.core.world.rank, |comm, call| {
                comm.recv(call, from, cast_slice_mut(data))
            })
        })
    }

    fn peer(&self, what: &str, peer: usize) -> Result<usize> {
        let peer = self.inner.check_rank("rank", peer)?;
        if peer == self.rank() {
            return Err(Error::Invalid(format!("rank {peer} cannot {what} itself")));
        }
        Ok(peer)
    }

    fn cut<T: Element>(&self, all: &[T], length: usize) -> Vec<Vec<T>> {
        (0..self.world_size()).map(|rank| all[rank * length..(rank + 1) * length].to_vec()).collect()
    }

    fn expect_length(&self, operation: &str, all: usize, mine: usize) -> Result<()> {
        let wanted = mine * self.world_size();
        if all == wanted {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "{operation}: the long buffer has {all} elements; {} ranks with {mine} each need {wanted}",
            self.world_size()
        )))
    }
}
