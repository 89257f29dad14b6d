//! The 40 bytes before every message between two ranks: the fingerprint of the call it belongs to,
//! and the method that the call entered.

use super::method::{Method, MethodCall};
use crate::{DType, ReduceOp, communicator::Fingerprint};

pub(crate) const HEADER: usize = 40;

const DTYPES: [DType; 7] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U8];
const REDUCES: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];
const NONE: u8 = 0xff;
/// Marks a header.
const MARK: u8 = b'd';

fn index<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).map_or(NONE, |at| at as u8)
}

pub(crate) fn encode(call: MethodCall<'_>) -> [u8; HEADER] {
    let root = call.root.map(|root| root as u32);
    pack(call.method, call.seq, call.count as u64, call.operation, call.dtype, call.reduce, root)
}

/// Little endian: seq (8), count (8), operation as ASCII padded with zeros (16), dtype (1),
/// reduction (1), method (1), "d" (1), root (4, all ones for none).
pub(crate) fn pack(
    method: Method,
    seq: u64,
    count: u64,
    operation: &str,
    dtype: DType,
    reduce: Option<ReduceOp>,
    root: Option<u32>,
) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0..8].copy_from_slice(&seq.to_le_bytes());
    header[8..16].copy_from_slice(&count.to_le_bytes());
    let name = &operation.as_bytes()[..operation.len().min(16)];
    header[16..16 + name.len()].copy_from_slice(name);
    header[32] = index(&DTYPES, &dtype);
    header[33] = reduce.map_or(NONE, |reduce| index(&REDUCES, &reduce));
    (header[34], header[35]) = (method.code(), MARK);
    header[36..40].copy_from_slice(&root.unwrap_or(u32::MAX).to_le_bytes());
    header
}

/// The call behind a header and its method, or `None` if it is no header.
pub(crate) fn decode(header: &[u8; HEADER]) -> Option<(Fingerprint, Method)> {
    let word = |at: usize| header[at..at + 8].try_into().ok().map(u64::from_le_bytes);
    let name = &header[16..32];
    let (name, padding) = name.split_at(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
    // What differs from every header must not read as the call it differs from.
    let padded = padding.iter().all(|byte| *byte == 0);
    if header[35] != MARK || name.is_empty() || !padded || !name.iter().all(u8::is_ascii_graphic) {
        return None;
    }
    let root = u32::from_le_bytes(header[36..40].try_into().ok()?);
    let method = Method::from_code(header[34])?;
    let call = Fingerprint {
        seq: word(0)?,
        count: word(8)?,
        operation: String::from_utf8(name.to_vec()).ok()?,
        dtype: *DTYPES.get(usize::from(header[32]))?,
        reduce: if header[33] == NONE { None } else { Some(*REDUCES.get(usize::from(header[33]))?) },
        root: (root != u32::MAX).then_some(root),
    };
    Some((call, method))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Call;
    use proptest::prelude::*;
    use std::time::Duration;

    proptest! {
        #[test]
        fn a_header_is_read_as_it_was_written(
            seq: u64, count: usize, dtype in 0usize..7, reduce in 0usize..6, root in prop::option::of(0usize..1000),
        ) {
            let reduce = REDUCES.get(reduce).copied();
            let timeout = Duration::ZERO;
            let call = Call { seq, operation: "reduce_scatter", dtype: DTYPES[dtype], count, reduce, root, timeout };
            for method in [Method::AllReduce, Method::Barrier] {
                prop_assert_eq!(decode(&encode(method.of(&call))), Some((call.fingerprint(), method)));
            }
        }

        #[test]
        fn rubbish_never_panics(bytes: [u8; 32], tail: [u8; 8]) {
            let mut header = [0; HEADER];
            header[..32].copy_from_slice(&bytes);
            header[32..].copy_from_slice(&tail);
            let _ = decode(&header);
        }
    }
}
