//! Functions with a version for each vector width, and unaligned access to vectors (crate `pulp`).

use pulp::{Arch, Simd};

#[cfg(test)]
thread_local! {
    /// Overrides the detected architecture in tests.
    pub static PRETEND: std::cell::Cell<Option<Arch>> = const { std::cell::Cell::new(None) };
}

/// The architecture with the widest vectors of this processor.
#[inline(always)]
pub fn arch() -> Arch {
    #[cfg(test)]
    if let Some(arch) = PRETEND.get() {
        return arch;
    }
    Arch::new()
}

/// Defines a function that is compiled for each instruction set and calls the version with the widest vectors.
///
/// With `<S: Simd>(simd: S, …)`, which callers do not pass, the body knows the instruction set; `const` parameters may follow
/// `S`. References in types need no lifetimes. Closures in the body that are not inlined are compiled for the baseline
/// processor; so are other functions, unless they are `#[inline(always)]`.
macro_rules! multiversion {
    (
        $(#[$doc:meta])*
        $visibility:vis fn $name:ident<S: Simd $(, const $N:ident: usize)*>(
            $simd:ident: S, $($argument:ident: $type:ty),* $(,)?
        ) $(-> $output:ty)? $body:block
    ) => {
        $(#[$doc])*
        $visibility fn $name<$(const $N: usize),*>($($argument: $type),*) $(-> $output)? {
            struct Call<Arguments $(, const $N: usize)*>(Arguments);

            impl<$(const $N: usize),*> pulp::WithSimd for Call<($($type,)*) $(, $N)*> {
                type Output = multiversion!(@output $($output)?);

                #[inline(always)]
                fn with_simd<S: pulp::Simd>(self, $simd: S) -> Self::Output {
                    let Self(($($argument,)*)) = self;
                    $body
                }
            }

            $crate::simd::arch().dispatch(Call::<_ $(, $N)*>(($($argument,)*)))
        }
    };
    (
        $(#[$doc:meta])*
        $visibility:vis fn $name:ident $(<$($T:ident $(: $bound:path)?),*>)? (
            $($argument:ident: $type:ty),* $(,)?
        ) $(-> $output:ty)? $body:block
    ) => {
        $(#[$doc])*
        $visibility fn $name $(<$($T $(: $bound)?),*>)? ($($argument: $type),*) $(-> $output)? {
            struct Call<Arguments>(Arguments);

            impl $(<$($T $(: $bound)?),*>)? pulp::WithSimd for Call<($($type,)*)> {
                type Output = multiversion!(@output $($output)?);

                #[inline(always)]
                fn with_simd<S: pulp::Simd>(self, _: S) -> Self::Output {
                    let Self(($($argument,)*)) = self;
                    $body
                }
            }

            $crate::simd::arch().dispatch(Call(($($argument,)*)))
        }
    };
    (@output) => { () };
    (@output $output:ty) => { $output };
}

pub(crate) use multiversion;

/// Loads the vector that starts at `from`.
///
/// # Safety
/// `S::F32_LANES` values must be readable at `from`.
#[inline(always)]
pub unsafe fn load<S: Simd>(from: *const f32) -> S::f32s {
    // SAFETY: the caller's contract; no alignment is needed.
    unsafe { from.cast::<S::f32s>().read_unaligned() }
}

/// Stores `vector` at `to`.
///
/// # Safety
/// `S::F32_LANES` values must be writable at `to`.
#[inline(always)]
pub unsafe fn store<S: Simd>(to: *mut f32, vector: S::f32s) {
    // SAFETY: the caller's contract; no alignment is needed.
    unsafe { to.cast::<S::f32s>().write_unaligned(vector) }
}

/// Number of partial results, which the compiler keeps in vectors.
const PARTS: usize = 16;

/// Sum of partial sums, in vectors.
#[inline(always)]
fn total(mut sums: [f32; PARTS]) -> f32 {
    let mut half = PARTS / 2;
    while half > 0 {
        for part in 0..half {
            sums[part] += sums[part + half];
        }
        half /= 2;
    }
    sums[0]
}

/// Sum of `of(a, b)` over slices of equal length, in 16 partial sums.
#[inline(always)]
pub fn sum(a: &[f32], b: &[f32], of: impl Fn(f32, f32) -> f32) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<PARTS>(), b.as_chunks::<PARTS>());
    let mut sums = [0.0; PARTS];
    for (a, b) in a.iter().zip(b) {
        for part in 0..PARTS {
            sums[part] += of(a[part], b[part]);
        }
    }
    let mut rest = 0.0;
    for (a, b) in a_rest.iter().zip(b_rest) {
        rest += of(*a, *b);
    }
    total(sums) + rest
}

/// Sums of both values of `of(a, b, c)` over slices of equal length, in 16 partial sums each.
#[inline(always)]
pub fn sum_pairs<A: Copy, B: Copy, C: Copy>(
    a: &[A],
    b: &[B],
    c: &[C],
    of: impl Fn(A, B, C) -> [f32; 2],
) -> [f32; 2] {
    let ((a, a_rest), (b, b_rest), (c, c_rest)) =
        (a.as_chunks::<PARTS>(), b.as_chunks::<PARTS>(), c.as_chunks::<PARTS>());
    let (mut first, mut second) = ([0.0; PARTS], [0.0; PARTS]);
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for part in 0..PARTS {
            let pair = of(a[part], b[part], c[part]);
            first[part] += pair[0];
            second[part] += pair[1];
        }
    }
    let mut totals = [total(first), total(second)];
    for ((a, b), c) in a_rest.iter().zip(b_rest).zip(c_rest) {
        let pair = of(*a, *b, *c);
        totals = [totals[0] + pair[0], totals[1] + pair[1]];
    }
    totals
}

/// The largest value; −∞ if there is none. NaN is ignored.
#[inline(always)]
pub fn largest(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (whole, rest) = values.as_chunks::<PARTS>();
    let mut most = [f32::NEG_INFINITY; PARTS];
    for values in whole {
        for part in 0..PARTS {
            most[part] = larger(most[part], values[part]);
        }
    }
    most.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
}

/// Copies a few dozen values, faster than a call of `memcpy`.
///
/// # Safety
/// `len` values must be readable at `from` and writable at `to`.
#[inline(always)]
pub unsafe fn copy(from: *const f32, to: *mut f32, len: usize) {
    const STEP: usize = 8;
    let mut at = 0;
    while at < len {
        // SAFETY: the caller's contract.
        unsafe {
            if len < STEP {
                *to.add(at) = *from.add(at);
                at += 1;
            } else {
                // The last step overlaps the one before it, so that it does not exceed the end.
                let start = at.min(len - STEP);
                let step = from.add(start).cast::<[f32; STEP]>().read_unaligned();
                to.add(start).cast::<[f32; STEP]>().write_unaligned(step);
                at += STEP;
            }
        }
    }
}

/// Copies every `stride`th value of `from`.
///
/// # Panics
/// With strides 1 and 2, if `from` has too few values.
#[inline(always)]
pub fn copy_strided(from: &[f32], stride: usize, to: &mut [f32]) {
    match (stride, to) {
        (1, to) => to.copy_from_slice(&from[..to.len()]),
        (2, [to @ .., last]) => {
            let (pairs, rest) = from[..2 * to.len() + 1].as_chunks::<2>();
            to.iter_mut().zip(pairs).for_each(|(to, pair)| *to = pair[0]);
            *last = rest[0];
        }
        (_, to) => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, value)| *to = *value),
    }
}

/// Values that start at a cache line, so that no vector crosses one.
pub struct Aligned {
    values: Vec<f32>,
    start: usize,
}

impl Aligned {
    /// Creates `len` zeros.
    pub fn new(len: usize) -> Self {
        const LINE: usize = 64;
        let values = vec![0.0; len + LINE / size_of::<f32>()];
        let start = values.as_ptr().align_offset(LINE).min(LINE / size_of::<f32>());
        Self { values, start }
    }

    #[inline(always)]
    pub fn values(&self) -> &[f32] {
        &self.values[self.start..]
    }

    #[inline(always)]
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values[self.start..]
    }
}
