//! Arithmetic of the reductions, and conversion between elements and partials.

use super::BLOCK;
use bytemuck::Pod;
use half::{bf16, f16, slice::HalfFloatSliceExt};

/// Arithmetic on a partial.
pub trait Partial: Pod + Default {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    /// Every element divided by `world`.
    fn divide(all: &mut [Self], world: usize);
}

/// Methods that floats and integers share.
macro_rules! partial {
    ($nan:expr) => {
        // A NaN on the left fails the comparison and stays.
        #[inline(always)]
        fn min(self, other: Self) -> Self {
            if (other < self) | $nan(other) { other } else { self }
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            if (other > self) | $nan(other) { other } else { self }
        }
    };
}

macro_rules! floats {
    ($($t:ty),*) => { $(impl Partial for $t {
        partial!(<$t>::is_nan);
        #[inline(always)]
        fn add(self, other: Self) -> Self { self + other }
        #[inline(always)]
        fn mul(self, other: Self) -> Self { self * other }
        #[inline(always)]
        fn divide(all: &mut [Self], world: usize) {
            let world_size = world as $t;
            if world.is_power_of_two() {
                // Exact, so the same bits, and several times faster.
                let inverse = 1.0 / world_size;
                all.iter_mut().for_each(|value| *value *= inverse);
            } else {
                all.iter_mut().for_each(|value| *value /= world_size);
            }
        }
    })* };
}
floats!(f32, f64);

macro_rules! integers {
    ($($t:ty),*) => { $(impl Partial for $t {
        partial!(|_| false);
        #[inline(always)]
        fn add(self, other: Self) -> Self { self.wrapping_add(other) }
        #[inline(always)]
        fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
        #[inline(always)]
        fn divide(all: &mut [Self], world: usize) {
            all.iter_mut().for_each(|value| *value /= world as $t);
        }
    })* };
}
integers!(i32, i64, i128, u8, u32);

/// An element type that is reduced in the partial type `P`. Slices have equal counts.
pub trait Folds<P: Partial>: Pod {
    fn load(src: &[u8], acc: &mut [P]) {
        Self::fold(acc, src, |_, value| value);
    }
    fn fold(acc: &mut [P], src: &[u8], f: impl Fn(P, P) -> P);
    /// Loads `a` and folds `b` in one pass, so that the processor fetches both in parallel.
    fn first(acc: &mut [P], a: &[u8], b: &[u8], f: impl Fn(P, P) -> P) {
        Self::load(a, acc);
        Self::fold(acc, b, f);
    }
    fn store(acc: &[P], out: &mut [u8]);
}

macro_rules! folds {
    ($($t:ty => $p:ty, $to:expr, $from:expr;)*) => { $(impl Folds<$p> for $t {
        #[inline(always)]
        fn fold(acc: &mut [$p], src: &[u8], f: impl Fn($p, $p) -> $p) {
            for (acc, src) in acc.iter_mut().zip(bytemuck::cast_slice::<u8, [u8; size_of::<$t>()]>(src)) {
                *acc = f(*acc, $to(<$t>::from_ne_bytes(*src)));
            }
        }
        #[inline(always)]
        fn first(acc: &mut [$p], a: &[u8], b: &[u8], f: impl Fn($p, $p) -> $p) {
            let a = bytemuck::cast_slice::<u8, [u8; size_of::<$t>()]>(a);
            let b = bytemuck::cast_slice::<u8, [u8; size_of::<$t>()]>(b);
            for (acc, (a, b)) in acc.iter_mut().zip(a.iter().zip(b)) {
                *acc = f($to(<$t>::from_ne_bytes(*a)), $to(<$t>::from_ne_bytes(*b)));
            }
        }
        #[inline(always)]
        fn store(acc: &[$p], out: &mut [u8]) {
            for (acc, out) in acc.iter().zip(bytemuck::cast_slice_mut::<u8, [u8; size_of::<$t>()]>(out)) {
                *out = <$t>::to_ne_bytes($from(*acc));
            }
        }
    })* };
}
folds! {
    f32 => f32, |v| v, |v| v;
    f64 => f64, |v| v, |v| v;
    bf16 => f32, bf16_to_f32, bf16_from_f32;
    i32 => i32, |v| v, |v| v;
    i32 => i64, i64::from, |v| v as i32;
    i64 => i64, |v| v, |v| v;
    i64 => i128, i128::from, |v| v as i64;
    u8 => u8, |v| v, |v| v;
    u8 => u32, u32::from, |v| v as u8;
}

/// Uses `half`'s slice conversions, which use the processor's instructions where available.
impl Folds<f32> for f16 {
    #[inline(always)]
    fn fold(acc: &mut [f32], src: &[u8], f: impl Fn(f32, f32) -> f32) {
        let (mut halves, mut values) = ([f16::ZERO; BLOCK], [0f32; BLOCK]);
        let (halves, values) = (&mut halves[..acc.len()], &mut values[..acc.len()]);
        bytemuck::cast_slice_mut(halves).copy_from_slice(src);
        halves.convert_to_f32_slice(values);
        for (acc, value) in acc.iter_mut().zip(values) {
            *acc = f(*acc, *value);
        }
    }
    #[inline(always)]
    fn store(acc: &[f32], out: &mut [u8]) {
        let mut halves = [f16::ZERO; BLOCK];
        let halves = &mut halves[..acc.len()];
        halves.convert_from_f32_slice(acc);
        out.copy_from_slice(bytemuck::cast_slice(halves));
    }
}

#[inline(always)]
pub fn bf16_to_f32(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// Rounds to nearest, ties to even, without a branch, so that the loop around it vectorises.
#[inline(always)]
pub fn bf16_from_f32(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    // Rounding could turn a NaN into an infinity: keep its sign and make it quiet instead.
    let bits = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
    bf16::from_bits((bits >> 16) as u16)
}
