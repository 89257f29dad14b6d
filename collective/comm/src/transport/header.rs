//! Binary form of a call's fingerprint and method, which ranks compare before they exchange data.
//!
//! Little endian: seq (8), count (8), operation as ASCII padded with zeros (`SIZE` − 24), dtype (1),
//! reduction (1), method (1), "d" (1), root (4, all ones for none). Longer names are truncated.

use super::method::{Method, MethodCall, Side};
use crate::{DType, ReduceOp, communicator::Fingerprint};

/// Size in bytes of the header before every message between two ranks: names of 16 letters.
pub(crate) const HEADER: usize = 40;

/// In the order of their codes.
const DTYPES: [DType; 7] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U8];
const REDUCES: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];
const NONE: u8 = 0xff;
/// Marks a header.
const MARK: u8 = b'd';
/// Offset of the operation's name.
const NAME: usize = 16;
/// Bytes after the name.
const TAIL: usize = 8;

/// Encodes a call and its method.
pub(crate) fn encode<const SIZE: usize>(call: MethodCall<'_>) -> [u8; SIZE] {
    let root = call.root.map(|root| root as u32);
    pack(call.method, call.seq, call.count as u64, call.operation, call.dtype, call.reduce, root)
}

/// [`encode`], from the parts of a call.
pub(crate) fn pack<const SIZE: usize>(
    method: Method,
    seq: u64,
    count: u64,
    operation: &str,
    dtype: DType,
    reduce: Option<ReduceOp>,
    root: Option<u32>,
) -> [u8; SIZE] {
    let mut header = [0; SIZE];
    header[0..8].copy_from_slice(&seq.to_le_bytes());
    header[8..NAME].copy_from_slice(&count.to_le_bytes());
    let (name, tail) = header[NAME..].split_at_mut(SIZE - NAME - TAIL);
    for (byte, letter) in name.iter_mut().zip(operation.bytes()) {
        *byte = letter;
    }
    tail[0] = dtype as u8;
    tail[1] = reduce.map_or(NONE, |reduce| reduce as u8);
    (tail[2], tail[3]) = (method.code(), MARK);
    tail[4..].copy_from_slice(&root.unwrap_or(u32::MAX).to_le_bytes());
    header
}

/// Decodes a call and its method; `None` for bytes that [`encode`] does not produce.
pub(crate) fn decode<const SIZE: usize>(header: &[u8; SIZE]) -> Option<(Fingerprint, Method)> {
    let word = |at: usize| header[at..at + 8].try_into().ok().map(u64::from_le_bytes);
    let (name, tail) = header[NAME..].split_at(SIZE - NAME - TAIL);
    let (name, padding) = name.split_at(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
    // Bytes after the padding would make two different headers decode to the same call.
    let padded = padding.iter().all(|byte| *byte == 0);
    let printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    if tail[3] != MARK || name.is_empty() || !padded || !name.iter().all(printable) {
        return None;
    }
    let root = u32::from_le_bytes(tail[4..].try_into().ok()?);
    let method = Method::from_code(tail[2])?;
    let call = Fingerprint {
        seq: word(0)?,
        count: word(8)?,
        operation: String::from_utf8(name.to_vec()).ok()?,
        dtype: *DTYPES.get(usize::from(tail[0]))?,
        reduce: if tail[1] == NONE { None } else { Some(*REDUCES.get(usize::from(tail[1]))?) },
        root: (root != u32::MAX).then_some(root),
    };
    Some((call, method))
}

/// The number of the call in `header`.
pub(crate) fn seq(header: &[u8]) -> u64 {
    header.first_chunk().map_or(0, |seq| u64::from_le_bytes(*seq))
}

/// The side of rank `rank`, which has sent or published `header`, in a mismatch. Accepts any bytes.
pub(crate) fn side<const SIZE: usize>(rank: usize, header: &[u8; SIZE]) -> Side {
    match decode(header) {
        Some((call, method)) => (rank, call.to_string(), Some(method)),
        None => (rank, "a call that cannot be read".into(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Call;
    use proptest::prelude::*;
    use std::time::Duration;

    proptest! {
        #[test]
        fn headers_round_trip(
            seq: u64, count: usize, dtype in 0usize..7, reduce in 0usize..6, root in prop::option::of(0usize..1000),
        ) {
            let reduce = REDUCES.get(reduce).copied();
            let timeout = Duration::ZERO;
            let call = Call { seq, operation: "reduce_scatter", dtype: DTYPES[dtype], count, reduce, root, timeout };
            for method in [Method::AllReduce, Method::Barrier] {
                let expected = Some((call.fingerprint(), method));
                prop_assert_eq!(&decode(&encode::<HEADER>(method.of(&call))), &expected);
                let header = encode::<64>(method.of(&call));
                prop_assert_eq!(&decode(&header), &expected);
                prop_assert_eq!(side(2, &header), (2, call.to_string(), Some(method)));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: [u8; 32], tail: [u8; 8]) {
            let mut header = [0; HEADER];
            header[..32].copy_from_slice(&bytes);
            header[32..].copy_from_slice(&tail);
            let _ = side(0, &header);
        }
    }

    #[test]
    fn arbitrary_words_are_described() {
        for byte in [0, 0xff] {
            assert_eq!(side(0, &[byte; 64]), (0, "a call that cannot be read".into(), None));
        }
    }
}
