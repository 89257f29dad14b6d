//! What a rank is calling, in a fixed number of shared words, so that peers can compare.

use crate::{
    DType, ReduceOp,
    communicator::Fingerprint,
    transport::method::{Method, MethodCall},
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of an operation's name that are compared and shown.
const NAME: usize = 32;

/// The [`Fingerprint`] of a call and its method, readable by every rank.
#[repr(C)]
#[derive(Debug)]
pub struct Announcement([AtomicU64; 4 + NAME / 8]);

impl Announcement {
    pub fn publish(&self, call: MethodCall<'_>) {
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
pub struct Announced([u64; 4 + NAME / 8]);

impl Announced {
    pub fn of(call: MethodCall<'_>) -> Self {
        let mut name = [0; NAME];
        for (byte, from) in name.iter_mut().zip(call.operation.bytes()) {
            *byte = from;
        }
        let mut words = [0; 4 + NAME / 8];
        words[0] = call.seq;
        words[1] = call.count as u64;
        words[2] = call.root.map_or(0, |root| (root as u64).saturating_add(1));
        let method = u64::from(call.method.code());
        words[3] = method << 16 | dtype_code(call.dtype) << 8 | call.reduce.map_or(0, reduce_code);
        for (word, bytes) in words[4..].iter_mut().zip(name.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Announced(words)
    }

    /// The call's number within its group; 0 before the first.
    pub fn seq(&self) -> u64 {
        self.0[0]
    }

    /// The method that the call entered, if it can be read.
    pub fn method(&self) -> Option<Method> {
        u8::try_from(self.0[3] >> 16).ok().and_then(Method::from_code)
    }

    /// As the call displays itself. Takes whatever bits it meets: a peer wrote them.
    pub fn describe(&self) -> String {
        let [seq, count, root, kind, name @ ..] = self.0;
        let Some(dtype) = DTYPES.into_iter().find(|dtype| dtype_code(*dtype) == kind >> 8 & 0xff) else {
            return "a call that cannot be read".to_string();
        };
        let name: Vec<u8> = name.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let fingerprint = Fingerprint {
            seq,
            operation: String::from_utf8_lossy(&name).trim_end_matches('\0').escape_debug().to_string(),
            dtype,
            count,
            reduce: REDUCTIONS.into_iter().find(|reduce| reduce_code(*reduce) == kind & 0xff),
            root: root.checked_sub(1).map(|root| u32::try_from(root).unwrap_or(u32::MAX)),
        };
        fingerprint.to_string()
    }
}

const DTYPES: [DType; 7] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U8];
const REDUCTIONS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

const fn dtype_code(dtype: DType) -> u64 {
    match dtype {
        DType::F32 => 1,
        DType::F64 => 2,
        DType::F16 => 3,
        DType::BF16 => 4,
        DType::I32 => 5,
        DType::I64 => 6,
        DType::U8 => 7,
    }
}

/// 0 is no reduction.
const fn reduce_code(reduce: ReduceOp) -> u64 {
    match reduce {
        ReduceOp::Sum => 1,
        ReduceOp::Mean => 2,
        ReduceOp::Min => 3,
        ReduceOp::Max => 4,
        ReduceOp::Product => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Call;
    use std::time::Duration;

    #[test]
    fn describes_a_call_as_the_call_itself_does() {
        for (dtype, reduce, root) in [
            (DType::F32, Some(ReduceOp::Sum), None),
            (DType::BF16, None, Some(0)),
            (DType::U8, Some(ReduceOp::Product), Some(3)),
        ] {
            let call = Call {
                seq: 17,
                operation: "reduce_scatter",
                dtype,
                count: 1000,
                reduce,
                root,
                timeout: Duration::from_secs(1),
            };
            let announced = Announced::of(Method::ReduceScatter.of(&call));
            assert_eq!(announced.describe(), call.to_string());
            assert_eq!(announced.method(), Some(Method::ReduceScatter));
            assert_ne!(announced, Announced::of(Method::Barrier.of(&call)));
        }
    }

    #[test]
    fn describes_rubbish_without_panicking() {
        let rubbish = Announced([u64::MAX; 8]);
        assert!(rubbish.describe().contains("cannot be read") && rubbish.method().is_none());
        let mut words = [u64::MAX; 8];
        words[3] = 1 << 8;
        assert!(Announced(words).describe().contains("x F32, root"));
    }
}
