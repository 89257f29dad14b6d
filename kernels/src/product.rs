//! Products of matrices, also of parts of larger ones, by the crate `gemm`.

use crate::parallel::{self, Room, written};
use gemm::Parallelism;
use std::{mem::MaybeUninit, ops::Range};

/// Minimum number of multiplications for several threads.
const PARALLEL: usize = 1 << 18;

/// A matrix with its strides, which may be a part of a larger one.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T = f32> {
    pub(crate) values: &'a [T],
    /// Rows and columns.
    pub(crate) shape: [usize; 2],
    /// Distances between rows and between columns.
    pub(crate) strides: [usize; 2],
}

impl<'a, T: Copy> Matrix<'a, T> {
    /// A row-major matrix.
    ///
    /// # Panics
    /// If there is another number of values.
    pub fn new(values: &'a [T], shape: [usize; 2]) -> Self {
        assert_eq!(Some(values.len()), shape[0].checked_mul(shape[1]), "rows × columns");
        Self { values, shape, strides: [shape[1], 1] }
    }

    /// Exchanges rows and columns, without a copy.
    pub fn transpose(self) -> Self {
        let ([rows, columns], [row, column]) = (self.shape, self.strides);
        Self { shape: [columns, rows], strides: [column, row], ..self }
    }

    /// Rows and columns of a larger matrix from `[row, column]`.
    pub(crate) fn part(self, [row, column]: [usize; 2], shape: [usize; 2]) -> Self {
        let start = (row * self.strides[0] + column * self.strides[1]).min(self.values.len());
        Self { values: &self.values[start..], shape, ..self }
    }

    /// Some of the rows.
    pub(crate) fn rows(self, rows: Range<usize>) -> Self {
        self.part([rows.start, 0], [rows.len(), self.shape[1]])
    }

    /// Whether it is row-major or the transpose of such a matrix, with all values of the slice.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn is_whole(&self) -> bool {
        let [rows, columns] = self.shape;
        self.values.len() == rows * columns && [[columns, 1], [1, rows]].contains(&self.strides)
    }

    /// Whether all values are within the slice.
    fn fits(&self) -> bool {
        let [Some(row), Some(column)] = self.shape.map(|length| length.checked_sub(1)) else { return true };
        row * self.strides[0] + column * self.strides[1] < self.values.len()
    }
}

/// The values as room for a product.
pub fn writable(values: &mut [f32]) -> Room<'_> {
    // SAFETY: same layout. Only products receive it, which writes initialised values.
    unsafe { &mut *(std::ptr::from_mut(values) as *mut [MaybeUninit<f32>]) }
}

/// `left × right`, row-major.
///
/// # Panics
/// If the shapes do not match, or the result does not fit in memory.
pub fn product(left: Matrix, right: Matrix) -> Vec<f32> {
    let ([rows, inner], [_, columns]) = (left.shape, right.shape);
    let len = parallel::values(&[rows, columns]).expect("a result that fits in memory");
    let many = rows.saturating_mul(inner).saturating_mul(columns) >= PARALLEL;
    let parallelism = if many { Parallelism::Rayon(0) } else { Parallelism::None };
    // SAFETY: the product writes all values.
    let [result] = unsafe {
        written([len], |[to]: [Room; 1]| multiply(left, right, 1.0, (to, columns), false, parallelism))
    };
    result
}

/// `to = factor × left × right`; rows of `to` are `stride` values apart.
pub fn product_to(left: Matrix, right: Matrix, factor: f32, to: Room, stride: usize) {
    multiply(left, right, factor, (to, stride), false, Parallelism::None);
}

/// `to += left × right`; rows of `to` are `stride` values apart.
pub fn add_product(left: Matrix, right: Matrix, to: &mut [f32], stride: usize) {
    multiply(left, right, 1.0, (writable(to), stride), true, Parallelism::None);
}

/// With `add`, the values of `to`, which must be initialised, are summands.
fn multiply(
    left: Matrix,
    right: Matrix,
    factor: f32,
    (to, stride): (Room, usize),
    add: bool,
    parallelism: Parallelism,
) {
    let ([rows, inner], [right_inner, columns]) = (left.shape, right.shape);
    assert_eq!(inner, right_inner, "shapes of a product");
    assert!(left.fits() && right.fits(), "views within their matrices");
    let fits = rows == 0 || columns <= stride && (rows - 1) * stride + columns <= to.len();
    assert!(fits, "room for the product");
    // SAFETY: all values of both matrices and of the product are within their slices.
    unsafe {
        gemm::gemm::<f32>(
            rows,
            columns,
            inner,
            to.as_mut_ptr().cast(),
            1,
            stride as isize,
            add,
            left.values.as_ptr(),
            left.strides[1] as isize,
            left.strides[0] as isize,
            right.values.as_ptr(),
            right.strides[1] as isize,
            right.strides[0] as isize,
            f32::from(u8::from(add)),
            factor,
            false,
            false,
            false,
            parallelism,
        );
    }
}
