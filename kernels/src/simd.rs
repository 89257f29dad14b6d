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

/// A copy of a few dozen values, for which a call of `memcpy` takes longer than the copying.
///
/// # Safety
/// So many must be readable and writable there.
#[inline(always)]
pub unsafe fn copy(from: *const f32, to: *mut f32, len: usize) {
    const STEP: usize = 8;
    let mut at = 0;
    while at < len {
        // SAFETY: the caller's promise.
        unsafe {
            if len < STEP {
                *to.add(at) = *from.add(at);
                at += 1;
            } else {
                // The last step overlaps the one before it rather than the end.
                let start = at.min(len - STEP);
                let step = from.add(start).cast::<[f32; STEP]>().read_unaligned();
                to.add(start).cast::<[f32; STEP]>().write_unaligned(step);
                at += STEP;
            }
        }
    }
}

/// Values from the start of a cache line on, so that a vector lies in one.
pub struct Aligned {
    values: Vec<f32>,
    start: usize,
}

impl Aligned {
    /// `len` zeros.
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
