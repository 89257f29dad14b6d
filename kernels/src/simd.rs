//! Vectors of whatever width the processor has (crate `pulp`), from and to any address.

use pulp::{Arch, Simd};

#[cfg(test)]
thread_local! {
    /// In place of what the processor has.
    pub static PRETEND: std::cell::Cell<Option<Arch>> = const { std::cell::Cell::new(None) };
}

/// The widest vectors that this processor has.
#[inline(always)]
pub fn arch() -> Arch {
    #[cfg(test)]
    if let Some(arch) = PRETEND.get() {
        return arch;
    }
    Arch::new()
}

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
