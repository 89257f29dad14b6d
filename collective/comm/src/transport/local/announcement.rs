//! A rank's current call in shared memory, so that peers can compare.

use crate::{
    communicator::Fingerprint,
    transport::{
        header,
        method::{Method, MethodCall},
    },
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

    fn decode(&self) -> Option<(Fingerprint, Method)> {
        header::decode(&bytemuck::cast::<_, [u8; 8 * WORDS]>(self.0))
    }

    /// The call's number within its group; 0 before the first.
    pub fn seq(&self) -> u64 {
        u64::from_le(self.0[0])
    }

    /// The method that the call entered, if it can be decoded.
    pub(super) fn method(&self) -> Option<Method> {
        self.decode().map(|(_, method)| method)
    }

    /// The call as it displays itself. Accepts any bits, because a peer has written them.
    pub fn describe(&self) -> String {
        self.decode().map_or_else(|| "a call that cannot be read".into(), |(call, _)| call.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CallSpec, DType, ReduceOp};
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
            assert_eq!(announced.method(), Some(Method::ReduceScatter));
            assert_ne!(announced, Announced::of(Method::Barrier.of(&call)));
        }
    }

    #[test]
    fn describes_arbitrary_bits_without_panicking() {
        for words in [[u64::MAX; WORDS], [0; WORDS]] {
            let rubbish = Announced(words);
            assert!(rubbish.describe().contains("cannot be read") && rubbish.method().is_none());
        }
    }
}
