//! Arithmetic of the NCCL stand-in: NCCL's types and reductions, on bytes in host memory, in f64 or i64.

use std::ffi::c_int;

/// Size in bytes of an element of an `ncclDataType_t`.
pub fn size(dtype: c_int) -> usize {
    match dtype {
        0 | 1 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        other => panic!("no data type {other}"),
    }
}

/// Reduces inputs of equal length element by element.
pub fn reduce(inputs: &[Vec<u8>], dtype: c_int, op: c_int) -> Vec<u8> {
    let (size, count) = (size(dtype), inputs.len());
    let whole = matches!(dtype, 1 | 2 | 4);
    let mut reduced = Vec::with_capacity(inputs[0].len());
    for at in (0..inputs[0].len()).step_by(size) {
        let own = inputs.iter().map(|bytes| &bytes[at..at + size]);
        if whole {
            let values = own.map(|bytes| integer(bytes, dtype));
            let result = match op {
                0 => values.sum(),
                1 => values.product(),
                2 => values.max().unwrap(),
                3 => values.min().unwrap(),
                4 => values.sum::<i64>() / count as i64,
                other => panic!("no reduction {other}"),
            };
            reduced.extend_from_slice(&result.to_le_bytes()[..size]);
        } else {
            let values = own.map(|bytes| float(bytes, dtype));
            let result = match op {
                0 => values.sum(),
                1 => values.product(),
                2 => values.fold(f64::NEG_INFINITY, f64::max),
                3 => values.fold(f64::INFINITY, f64::min),
                4 => values.sum::<f64>() / count as f64,
                other => panic!("no reduction {other}"),
            };
            put(&mut reduced, result, dtype);
        }
    }
    reduced
}

fn integer(bytes: &[u8], dtype: c_int) -> i64 {
    match dtype {
        1 => i64::from(bytes[0]),
        2 => i64::from(i32::from_le_bytes(bytes.try_into().unwrap())),
        _ => i64::from_le_bytes(bytes.try_into().unwrap()),
    }
}

fn float(bytes: &[u8], dtype: c_int) -> f64 {
    let half = || u16::from_le_bytes(bytes.try_into().unwrap());
    match dtype {
        6 => from_f16(half()),
        9 => f64::from(f32::from_bits(u32::from(half()) << 16)),
        7 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        _ => f64::from_le_bytes(bytes.try_into().unwrap()),
    }
}

/// Appends a number.
fn put(to: &mut Vec<u8>, value: f64, dtype: c_int) {
    match dtype {
        6 => to.extend(nearest(value, from_f16).to_le_bytes()),
        9 => to.extend(nearest(value, |bits| f64::from(f32::from_bits(u32::from(bits) << 16))).to_le_bytes()),
        7 => to.extend((value as f32).to_le_bytes()),
        _ => to.extend(value.to_le_bytes()),
    }
}

fn from_f16(bits: u16) -> f64 {
    let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let value = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if sign == 1 { -value } else { value }
}

/// Bits of the nearest half-precision number, by binary search over all magnitudes.
fn nearest(value: f64, decode: impl Fn(u16) -> f64) -> u16 {
    let (sign, size) = (u16::from(value < 0.0) << 15, value.abs());
    let (mut low, mut high) = (0u16, 0x7fffu16);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        // There are no numbers above infinity.
        if decode(middle) <= size { low = middle } else { high = middle }
    }
    let (below, above) = (size - decode(low), decode(high) - size);
    let up = above < below || (above == below && low & 1 == 1);
    sign | if up { high } else { low }
}
