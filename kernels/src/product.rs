//! Products of matrices that are parts of larger ones.

use gemm::Parallelism;
use std::{mem::MaybeUninit, ops::Range};

/// A matrix within a larger one, whose rows are `stride` values apart.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub values: &'a [f32],
    /// Rows and columns.
    pub shape: [usize; 2],
    pub stride: usize,
}

impl<'a> View<'a> {
    /// Rows and columns of a larger matrix from `[row, column]`.
    pub fn part(self, [row, column]: [usize; 2], shape: [usize; 2]) -> View<'a> {
        let start = (row * self.stride + column).min(self.values.len());
        View { values: &self.values[start..], shape, ..self }
    }

    /// Some of the rows.
    pub fn rows(self, rows: Range<usize>) -> View<'a> {
        self.part([rows.start, 0], [rows.len(), self.shape[1]])
    }
}

/// The values as room for a product.
pub fn writable(values: &mut [f32]) -> &mut [MaybeUninit<f32>] {
    // SAFETY: same layout. Only products receive it, which writes initialised values.
    unsafe { &mut *(std::ptr::from_mut(values) as *mut [MaybeUninit<f32>]) }
}

/// `to = factor × left × right`, or with `right` transposed; rows of `to` are `stride` values apart.
pub fn product(
    left: View,
    right: View,
    transposed: bool,
    factor: f32,
    to: &mut [MaybeUninit<f32>],
    stride: usize,
) {
    let [rows, inner] = left.shape;
    let (columns, right_strides) = match transposed {
        true => (right.shape[0], [1, right.stride]),
        false => (right.shape[1], [right.stride, 1]),
    };
    let right_inner = right.shape[usize::from(transposed)];
    assert_eq!(inner, right_inner, "shapes of a product");
    multiply(
        [rows, inner, columns],
        (left, [left.stride, 1]),
        (right, right_strides),
        factor,
        to,
        stride,
        false,
    );
}

/// `to += left × rightᵀ`; rows of `to` are `stride` values apart.
pub fn add_product(left: View, right: View, to: &mut [f32], stride: usize) {
    let ([rows, inner], [columns, right_inner]) = (left.shape, right.shape);
    assert_eq!(inner, right_inner, "shapes of a product");
    let (left, right) = ((left, [left.stride, 1]), (right, [1, right.stride]));
    multiply([rows, inner, columns], left, right, 1.0, writable(to), stride, true);
}

/// `to = factor × leftᵀ × right`; rows of `to` are `stride` values apart.
pub fn product_of_transposed(
    left: View,
    right: View,
    factor: f32,
    to: &mut [MaybeUninit<f32>],
    stride: usize,
) {
    let [inner, rows] = left.shape;
    assert_eq!(inner, right.shape[0], "shapes of a product");
    let columns = right.shape[1];
    multiply(
        [rows, inner, columns],
        (left, [1, left.stride]),
        (right, [right.stride, 1]),
        factor,
        to,
        stride,
        false,
    );
}

/// With `add`, the values of `to`, which must be initialised, are summands.
fn multiply(
    [rows, inner, columns]: [usize; 3],
    (left, left_strides): (View, [usize; 2]),
    (right, right_strides): (View, [usize; 2]),
    factor: f32,
    to: &mut [MaybeUninit<f32>],
    stride: usize,
    add: bool,
) {
    for view in [left, right] {
        assert!(fits(view.shape, view.stride, view.values.len()), "views within their matrices");
    }
    assert!(fits([rows, columns], stride, to.len()), "room for the product");
    // SAFETY: all values of both views and of the product are within their slices.
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
            left_strides[1] as isize,
            left_strides[0] as isize,
            right.values.as_ptr(),
            right_strides[1] as isize,
            right_strides[0] as isize,
            f32::from(u8::from(add)),
            factor,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// Whether `len` values contain a matrix whose rows are `stride` values apart.
fn fits([rows, columns]: [usize; 2], stride: usize, len: usize) -> bool {
    rows == 0 || columns <= stride && (rows - 1) * stride + columns <= len
}
