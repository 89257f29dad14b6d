//! Binary form of a call and its method, which ranks compare before they exchange data.

use super::method::{Method, MethodCall};
use crate::{DType, Error, ReduceOp, communicator::Call};
use bytemuck::{Pod, Zeroable};
use std::time::Duration;

/// Size in bytes of a header.
pub const HEADER: usize = size_of::<Header>();

/// In the order of their codes.
const DTYPES: [DType; 7] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U8];
const REDUCES: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];
const NONE: u8 = 0xff;
/// Marks a header.
const MARK: u8 = b'd';

/// A call and its method, in the byte order of the machine, which is the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Header {
    pub seq: u64,
    count: u64,
    /// ASCII, padded with zeros. Longer names are truncated.
    name: [u8; 40],
    dtype: u8,
    /// [`NONE`] for none.
    reduce: u8,
    method: u8,
    /// [`MARK`]
    mark: u8,
    /// All ones for none.
    root: u32,
}

// SAFETY: integers, which may be zero.
unsafe impl Zeroable for Header {}
// SAFETY: integers without padding between and after them, which may have any bits.
unsafe impl Pod for Header {}

impl Header {
    pub fn new(call: MethodCall<'_>) -> Self {
        let mut name = [0; 40];
        name.iter_mut().zip(call.operation.bytes()).for_each(|(byte, letter)| *byte = letter);
        Header {
            seq: call.seq,
            count: call.count as u64,
            name,
            dtype: call.dtype as u8,
            reduce: call.reduce.map_or(NONE, |reduce| reduce as u8),
            method: call.method as u8,
            mark: MARK,
            root: call.root.map_or(u32::MAX, |root| root as u32),
        }
    }

    /// The call and its method; `None` for bytes that [`Header::new`] does not produce.
    pub fn decode(&self) -> Option<(Call, Method)> {
        let length = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        let (name, padding) = self.name.split_at(length);
        // Bytes after the padding would make two different headers decode to the same call.
        let padded = padding.iter().all(|byte| *byte == 0);
        let printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
        if self.mark != MARK || name.is_empty() || !padded || !name.iter().all(printable) {
            return None;
        }
        let call = Call {
            seq: self.seq,
            count: self.count.try_into().ok()?,
            operation: String::from_utf8(name.to_vec()).ok()?.into(),
            dtype: *DTYPES.get(usize::from(self.dtype))?,
            reduce: if self.reduce == NONE { None } else { Some(*REDUCES.get(usize::from(self.reduce))?) },
            root: (self.root != u32::MAX).then_some(self.root as usize),
            timeout: Duration::ZERO,
        };
        Some((call, *Method::ALL.get(usize::from(self.method))?))
    }

    /// The call, for messages, and the method if known. Accepts any bytes.
    fn describe(&self) -> (String, Option<Method>) {
        match self.decode() {
            Some((call, method)) => (call.to_string(), Some(method)),
            None => ("a call that cannot be read".into(), None),
        }
    }
}

/// The error for two ranks with different headers. Methods are named if nothing else differs.
pub(crate) fn mismatch((rank_a, a): (usize, &Header), (rank_b, b): (usize, &Header)) -> Error {
    let ((call_a, a), (call_b, b)) = (a.describe(), b.describe());
    let same = call_a == call_b;
    let side = |call: String, method: Option<Method>| match method.filter(|_| same) {
        Some(method) => format!("{call} through {}", method.name()),
        None => call,
    };
    Error::Mismatch { rank_a, call_a: side(call_a, a), rank_b, call_b: side(call_b, b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_round_trip(
            seq: u64, count: usize, dtype in 0usize..7, reduce in 0usize..6, root in prop::option::of(0usize..1000),
        ) {
            let reduce = REDUCES.get(reduce).copied();
            let (operation, timeout) = ("reduce_scatter".into(), Duration::ZERO);
            let call = Call { seq, operation, dtype: DTYPES[dtype], count, reduce, root, timeout };
            for method in Method::ALL {
                let header = Header::new(method.of(&call));
                prop_assert_eq!(header.decode(), Some((call.clone(), method)));
                prop_assert_eq!(header.describe(), (call.to_string(), Some(method)));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: [[u8; 32]; 2]) {
            let _ = bytemuck::cast::<_, Header>(bytes).describe();
        }
    }

    #[test]
    fn arbitrary_words_are_described() {
        for byte in [0u8, 0xff] {
            let header: Header = bytemuck::cast([byte; HEADER]);
            assert_eq!(header.describe(), ("a call that cannot be read".into(), None));
        }
    }
}
