//! Vectors of whatever width the processor has (crate `pulp`), from and to any address.

use pulp::Simd;

/// The vector that starts at `from`.
///
/// # Safety
/// `S::F32_LANES` values must be readable there.
#[inline(always)]
pub unsafe fn load<S: Simd>(from: *const f32) -> S::f32s {
    // SAFETY: the caller's promise; no alignment is needed.
    unsafe { from.cast::<S::f32s>().read_unaligned() }
}

/// Writes `vector` to `to` and what follows.
///
/// # Safety
/// `S::F32_LANES` values must be writable there.
#[inline(always)]
pub unsafe fn store<S: Simd>(to: *mut f32, vector: S::f32s) {
    // SAFETY: the caller's promise; no alignment is needed.
    unsafe { to.cast::<S::f32s>().write_unaligned(vector) }
}
