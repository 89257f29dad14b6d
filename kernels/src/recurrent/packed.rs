//! Products of a few rows with a matrix that many of them share.

use crate::{
    parallel,
    product::Matrix,
    simd::{Aligned, load, store},
};
use pulp::Simd;
use std::ops::Range;

/// Columns per strip.
const STRIP: usize = 16;
/// Vectors of columns whose sums are in registers at a time.
const VECTORS: usize = 2;
/// Columns of the widest vectors, to a multiple of which the matrix is padded.
const SPAN: usize = VECTORS * 16;
/// Values of the matrix that stay in the first-level cache while all rows of the left side pass.
const CACHED: usize = 1 << 12;
/// Rows at a time with 32 and with 16 registers.
const WIDE: usize = 8;
const NARROW: usize = 4;

/// A matrix in the order in which [`multiply`](Self::multiply) reads it.
pub struct Packed {
    /// `[stride / STRIP, inner + 1, STRIP]`, after the bias the rows of the matrix, padded with zeros.
    strips: Aligned,
    inner: usize,
    columns: usize,
}

impl Packed {
    /// The rows of all `parts`, and the bias of their columns, which may be empty.
    pub fn new<const N: usize>(parts: [Matrix; N], bias: &[f32]) -> Self {
        let columns = parts[0].shape[1];
        let inner = parts.iter().map(|part| part.shape[0]).sum();
        let len = (inner + 1) * STRIP;
        let all = columns.next_multiple_of(SPAN) / STRIP * len;
        let mut strips = Aligned::new(all);
        parallel::parts(&mut strips.values_mut()[..all], len, |first, strips| {
            for (strip, start) in strips.chunks_exact_mut(len).zip((first / len * STRIP..).step_by(STRIP)) {
                let columns = start.min(columns)..columns.min(start + STRIP);
                if !bias.is_empty() {
                    strip[..columns.len()].copy_from_slice(&bias[columns.clone()]);
                }
                let mut rows = strip[STRIP..].chunks_exact_mut(STRIP);
                for part in &parts {
                    for row in (0..part.shape[0]).map(|row| row * part.strides[0]) {
                        let to = &mut rows.next().expect("a row of the strip")[..columns.len()];
                        if part.strides[1] == 1 {
                            to.copy_from_slice(&part.values[row + columns.start..][..columns.len()]);
                        } else {
                            let from =
                                columns.clone().map(|column| part.values[row + column * part.strides[1]]);
                            to.iter_mut().zip(from).for_each(|(to, value)| *to = value);
                        }
                    }
                }
            }
        });
        Self { strips, inner, columns }
    }

    /// Length of a row of a product, which is padded.
    pub fn stride(&self) -> usize {
        self.columns.next_multiple_of(SPAN)
    }

    /// `to = left × matrix + bias`, for `rows` rows of `left`, `stride` values apart, and of `to`.
    ///
    /// # Panics
    /// If a slice is too short.
    #[inline(always)]
    pub fn multiply<S: Simd>(&self, simd: S, rows: usize, (left, stride): (&[f32], usize), to: &mut [f32]) {
        assert!(rows == 0 || left.len() >= (rows - 1) * stride + self.inner, "rows of the left side");
        assert!(to.len() >= rows * self.stride(), "rows of the product");
        let left = Rows { values: left.as_ptr(), stride };
        // SAFETY: the slices have these rows.
        unsafe {
            if S::REGISTER_COUNT >= 32 {
                self.tiles::<S, WIDE>(simd, rows, left, to.as_mut_ptr());
            } else {
                self.tiles::<S, NARROW>(simd, rows, left, to.as_mut_ptr());
            }
        }
    }

    /// # Safety
    /// `left` and `to` must have `rows` rows.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const R: usize>(&self, simd: S, rows: usize, left: Rows, to: *mut f32) {
        let (width, all) = (VECTORS * S::F32_LANES, 0..self.inner);
        for column in (0..self.stride()).step_by(width) {
            let matrix = std::array::from_fn(|vector| {
                let column = column + vector * S::F32_LANES;
                let start = column / STRIP * (self.inner + 1) * STRIP + column % STRIP;
                self.strips.values()[start..].as_ptr()
            });
            let to = |row: usize| to.wrapping_add(row * self.stride() + column);
            // SAFETY: each tile has rows within `rows`, and columns within the strips.
            unsafe {
                if rows < R {
                    for row in 0..rows {
                        self.tile::<S, 1>(simd, left.from(row), matrix, all.clone(), to(row));
                    }
                    continue;
                }
                for start in (0..self.inner.max(1)).step_by(CACHED / width) {
                    let part = start..self.inner.min(start + CACHED / width);
                    for row in (0..=rows - R).step_by(R) {
                        self.tile::<S, R>(simd, left.from(row), matrix, part.clone(), to(row));
                    }
                }
                // The last rows overlap those before them, which get the same values again.
                if !rows.is_multiple_of(R) {
                    self.tile::<S, R>(simd, left.from(rows - R), matrix, all.clone(), to(rows - R));
                }
            }
        }
    }

    /// Multiplies `R` rows of `left` by vectors of columns of some rows of the matrix, and adds the bias before the first of
    /// these rows, or what `to` has.
    ///
    /// # Safety
    /// `left` and `to` must have `R` rows, and the columns of `matrix` `inner + 1`, `STRIP` apart.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize>(
        &self,
        simd: S,
        left: Rows,
        matrix: [*const f32; VECTORS],
        part: Range<usize>,
        to: *mut f32,
    ) {
        let at = |row: usize, vector: usize| to.wrapping_add(row * self.stride() + vector * S::F32_LANES);
        let mut sums = [[simd.splat_f32s(0.0); VECTORS]; R];
        for row in 0..R {
            for vector in 0..VECTORS {
                let from = if part.start == 0 { matrix[vector] } else { at(row, vector).cast_const() };
                // SAFETY: the caller's contract.
                sums[row][vector] = unsafe { load::<S>(from) };
            }
        }
        for inner in part {
            let mut values = [simd.splat_f32s(0.0); VECTORS];
            for vector in 0..VECTORS {
                // SAFETY: the caller's contract.
                values[vector] = unsafe { load::<S>(matrix[vector].add((inner + 1) * STRIP)) };
            }
            for row in 0..R {
                // SAFETY: the caller's contract.
                let factor = simd.splat_f32s(unsafe { *left.values.add(row * left.stride + inner) });
                for vector in 0..VECTORS {
                    sums[row][vector] = simd.mul_add_e_f32s(factor, values[vector], sums[row][vector]);
                }
            }
        }
        for row in 0..R {
            for vector in 0..VECTORS {
                // SAFETY: the caller's contract.
                unsafe { store::<S>(at(row, vector), sums[row][vector]) };
            }
        }
    }
}

/// Rows that are `stride` values apart.
#[derive(Clone, Copy)]
struct Rows {
    values: *const f32,
    stride: usize,
}

impl Rows {
    fn from(self, row: usize) -> Self {
        Self { values: self.values.wrapping_add(row * self.stride), ..self }
    }
}
