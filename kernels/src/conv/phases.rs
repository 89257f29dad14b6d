//! Planes of images divided by the stride.
//!
//! A phase has every `stride`-th row and column of a padded plane, so that a tap reads consecutive values for consecutive
//! outputs. There is one for each remainder of row and column; with stride 1, it is the padded plane.

use super::geometry::Geometry;

/// The phases of a plane, `[stride, stride, rows, columns]`.
#[derive(Clone, Copy, Debug)]
pub struct Phases {
    stride: [usize; 2],
    /// Rows and columns of a phase that taps read.
    pub plane: [usize; 2],
    /// The length of a phase is a multiple of it.
    multiple: usize,
}

impl Phases {
    pub fn new(geometry: &Geometry, multiple: usize) -> Self {
        let Geometry { kernel, stride, dilation, output, .. } = *geometry;
        let plane = [0, 1].map(|axis| output[axis] + dilation[axis] * (kernel[axis] - 1) / stride[axis]);
        Self { stride, plane, multiple }
    }

    /// Length of a phase.
    pub fn area(&self) -> usize {
        (self.plane[0] * self.plane[1]).next_multiple_of(self.multiple)
    }

    /// Length of all phases.
    pub fn len(&self) -> usize {
        self.stride[0] * self.stride[1] * self.area()
    }

    /// Index of a value of the padded plane.
    fn index(&self, row: usize, column: usize) -> usize {
        let [down, right] = self.stride;
        let phase = row % down * right + column % right;
        phase * self.area() + row / down * self.plane[1] + column / right
    }

    /// For each tap, the index of its value for the first output.
    pub fn starts(&self, geometry: &Geometry) -> Vec<usize> {
        let ([rows, columns], [down, right]) = (geometry.kernel, geometry.dilation);
        let start = |row, column| self.index(row * down, column * right);
        (0..rows).flat_map(|row| (0..columns).map(move |column| start(row, column))).collect()
    }

    /// Calls `run(at, index, count)` for runs of `count` values, which are consecutive in a phase and a stride apart in a
    /// plane of an image.
    #[inline(always)]
    pub fn lines(&self, geometry: &Geometry, mut run: impl FnMut(usize, usize, usize)) {
        let ([height, width], [top, left]) = (geometry.size, geometry.padding);
        let ([down, right], [rows, columns]) = (self.stride, self.plane);
        for y in 0..down.min(height) {
            for x in 0..right.min(width) {
                let count = (width - x).div_ceil(right).min(columns.saturating_sub((x + left) / right));
                let mut index = self.index(y + top, x + left);
                for y in (y..height).step_by(down).take(rows.saturating_sub((y + top) / down)) {
                    run(y * width + x, index, count);
                    index += columns;
                }
            }
        }
    }
}
