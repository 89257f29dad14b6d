//! Products of a few rows with a matrix that many of them share.

use crate::{
    parallel,
    simd::{Aligned, load, store},
};
use pulp::Simd;

/// Columns per block.
const SPAN: usize = 32;
/// Vectors of columns whose sums are in registers at a time.
const VECTORS: usize = 2;
/// Rows at a time with 32 and with 16 registers.
const WIDE: usize = 8;
const NARROW: usize = 4;

/// A matrix in the order in which [`multiply`](Self::multiply) reads it.
pub struct Packed {
    /// `[columns / SPAN, inner + 1, SPAN]`, after the bias the rows of the matrix, padded with zeros.
    blocks: Aligned,
    inner: usize,
    columns: usize,
}

impl Packed {
    /// A matrix of `[inner, columns]` values `of(row, column)`, and the bias, which may be empty.
    pub fn new([inner, columns]: [usize; 2], bias: &[f32], of: impl Fn(usize, usize) -> f32 + Sync) -> Self {
        let len = (inner + 1) * SPAN;
        let mut blocks = Aligned::new(columns.div_ceil(SPAN) * len);
        let values = &mut blocks.values_mut()[..columns.div_ceil(SPAN) * len];
        parallel::parts(values, len, |first, blocks| {
            for (block, start) in blocks.chunks_exact_mut(len).zip((first / len * SPAN..).step_by(SPAN)) {
                let until = columns.min(start + SPAN);
                if !bias.is_empty() {
                    block[..until - start].copy_from_slice(&bias[start..until]);
                }
                for row in 0..inner {
                    let to = &mut block[(row + 1) * SPAN..][..until - start];
                    to.iter_mut().zip(start..until).for_each(|(to, column)| *to = of(row, column));
                }
            }
        });
        Self { blocks, inner, columns }
    }

    /// Length of a row of a product, which is padded to whole blocks.
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
        for (number, block) in self.blocks.values().chunks_exact((self.inner + 1) * SPAN).enumerate() {
            for column in (0..SPAN).step_by(VECTORS * S::F32_LANES) {
                let mut row = 0;
                while row < rows {
                    let at_once = if rows < R { 1 } else { R };
                    // The last rows overlap those before them.
                    let start = row.min(rows - at_once);
                    // SAFETY: `at_once` rows start there, and these columns are within the block.
                    unsafe {
                        let matrix = block.as_ptr().add(column);
                        let to = to.add(start * self.stride() + number * SPAN + column);
                        if at_once == R {
                            self.tile::<S, R>(simd, left.from(start), matrix, to);
                        } else {
                            self.tile::<S, 1>(simd, left.from(start), matrix, to);
                        }
                    }
                    row += at_once;
                }
            }
        }
    }

    /// Multiplies `R` rows of `left` by `VECTORS` vectors of columns of a block.
    ///
    /// # Safety
    /// `left` and `to` must have `R` rows, and `matrix` `inner + 1` rows, `SPAN` apart.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize>(&self, simd: S, left: Rows, matrix: *const f32, to: *mut f32) {
        let load = |row: usize| {
            let mut values = [simd.splat_f32s(0.0); VECTORS];
            for vector in 0..VECTORS {
                // SAFETY: the caller's contract.
                values[vector] = unsafe { load::<S>(matrix.add(row * SPAN + vector * S::F32_LANES)) };
            }
            values
        };
        let mut sums = [load(0); R];
        for at in 0..self.inner {
            let values = load(at + 1);
            for row in 0..R {
                // SAFETY: the caller's contract.
                let factor = simd.splat_f32s(unsafe { *left.values.add(row * left.stride + at) });
                for vector in 0..VECTORS {
                    sums[row][vector] = simd.mul_add_e_f32s(factor, values[vector], sums[row][vector]);
                }
            }
        }
        for row in 0..R {
            for vector in 0..VECTORS {
                // SAFETY: the caller's contract.
                unsafe { store::<S>(to.add(row * self.stride() + vector * S::F32_LANES), sums[row][vector]) };
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
