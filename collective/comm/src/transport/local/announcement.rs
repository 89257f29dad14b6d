//! A rank's current call in shared memory, so that peers can compare.

use crate::transport::{
    header,
    method::{MethodCall, Side},
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of words; room for a name of 40 letters.
const WORDS: usize = 8;

/// A call and its method in shared words, readable by every rank.
#[repr(C)]
#[derive(Debug)]
pub struct Announcement([AtomicU64; WORDS]);

impl Announcement {
    pub(super) fn publish(&self, call: MethodCall<'_>) {
        for (shared, word) in self.0.iter().zip(Announced::of(call).0) {
            shared.store(word, Ordering::Relaxed);
        }
    }

    pub fn read(&self) -> Announced {
        Announced(std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)))
    }
}

/// An [`Announcement`] as it was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced([u64; WORDS]);

impl Announced {
    pub(super) fn of(call: MethodCall<'_>) -> Self {
        let bytes = header::encode::<{ 8 * WORDS }>(call);
        Announced(bytemuck::cast(bytes))
    }

    /// The call's number within its group; 0 before the first.
    pub fn seq(&self) -> u64 {
        u64::from_le(self.0[0])
    }

    /// The side of rank `rank`, which has published this, in a mismatch.
    pub(super) fn side(&self, rank: usize) -> Side {
        header::side(rank, &bytemuck::cast::<_, [u8; 8 * WORDS]>(self.0))
    }

    /// The call as it displays itself.
    pub fn describe(&self) -> String {
        self.side(0).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CallSpec, DType, ReduceOp, transport::method::Method};
    use std::time::Duration;

    #[test]
    fn describes_a_call_as_the_call_itself_does() {
        for (dtype, reduce, root) in [
            (DType::F32, Some(ReduceOp::Sum), None),
            (DType::BF16, None, Some(0)),
            (DType::U8, Some(ReduceOp::Product), Some(3)),
        ] {
            let spec = CallSpec { reduce, root, ..CallSpec::new("device reduce_scatter", dtype, 1000) };
            let call = spec.numbered(17, Duration::from_secs(1));
            let announced = Announced::of(Method::ReduceScatter.of(&call));
            assert_eq!(announced.seq(), 17);
            assert_eq!(announced.describe(), call.to_string());
            assert_eq!(announced.side(2), (2, call.to_string(), Some(Method::ReduceScatter)));
            assert_ne!(announced, Announced::of(Method::Barrier.of(&call)));
        }
    }

    #[test]
    fn describes_arbitrary_bits_without_panicking() {
        for words in [[u64::MAX; WORDS], [0; WORDS]] {
            let rubbish = Announced(words);
            assert!(rubbish.describe().contains("cannot be read") && rubbish.side(0).2.is_none());
        }
    }
}
