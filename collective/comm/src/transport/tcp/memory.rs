//! The memory of a call over connections, and the arithmetic on it.

use super::{schedule::Arithmetic, transfer::Part};
use crate::reduce::{Reduction, fold_own, reduce_pointers};
use std::ops::Range;

/// Memory of a call.
pub(super) struct Memory<'a> {
    /// The caller's buffer.
    pub user: &'a mut [u8],
    pub scratch: &'a mut [u8],
}

impl Memory<'_> {
    /// The bytes of `part` from its byte `from` on.
    pub fn read(&self, part: &Part, from: usize) -> &[u8] {
        match part {
            Part::User(range) => &self.user[range.start + from..range.end],
            Part::Scratch(range) => &self.scratch[range.start + from..range.end],
        }
    }

    /// As [`Memory::read`], to be written.
    pub fn write(&mut self, part: &Part, from: usize) -> &mut [u8] {
        match part {
            Part::User(range) => &mut self.user[range.start + from..range.end],
            Part::Scratch(range) => &mut self.scratch[range.start + from..range.end],
        }
    }
}

impl Arithmetic for Memory<'_> {
    fn reduce(&mut self, reduction: Reduction, input: &dyn Fn(usize) -> Part, out: Part) {
        let Reduction { dtype, op, world } = reduction;
        let bytes = out.len();
        let (user, scratch) = (self.user.as_mut_ptr(), self.scratch.as_mut_ptr());
        let (users, scratches) = (self.user.len(), self.scratch.len());
        let pointer = |part: Part| {
            let (start, len, range) = match part {
                Part::User(range) => (user, users, range),
                Part::Scratch(range) => (scratch, scratches, range),
            };
            assert!(range.len() == bytes && range.end <= len, "a part outside its memory");
            start.wrapping_add(range.start)
        };
        let input = |rank| pointer(input(rank)).cast_const();
        // SAFETY: `bytes` bytes each, checked at every use, in memory that is borrowed for this call. Parts of
        // a schedule are slots of one size, which coincide or do not overlap.
        unsafe { reduce_pointers(dtype, op, world.size, &input, &[pointer(out)], bytes) }
    }

    fn fold(&mut self, reduction: Reduction, own: Range<usize>, partials: Range<usize>) {
        fold_own(reduction, &mut self.user[own], &mut self.scratch[partials]);
    }
}
