//! Shapes and memory offsets of a convolution.

use crate::parallel;

/// Number of output positions of a tile of patches, unless a row or an image has more.
pub(super) const POSITIONS: usize = 256;

/// A convolution of images `[batch, channels, height, width]`, with zeros around them.
///
/// The kernels compute memory offsets from its fields, which [`Shape::new`] has validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Number of images.
    pub(crate) batch: usize,
    /// Input channels.
    pub(crate) channels: usize,
    /// Height and width of an image, without padding.
    pub(crate) size: [usize; 2],
    /// Zeros before the first row and the first column.
    pub(crate) padding: [usize; 2],
    /// Zeros after the last row and the last column.
    pub(crate) after: [usize; 2],
    /// Output channels.
    pub(crate) filters: usize,
    /// Height and width of the kernel.
    pub(crate) kernel: [usize; 2],
    /// Distance between outputs, by axis.
    pub(crate) stride: [usize; 2],
    /// Distance between taps, by axis.
    pub(crate) dilation: [usize; 2],
    /// Height and width of an output.
    pub(crate) output: [usize; 2],
}

impl Shape {
    /// Validates shapes; weights are `[filters, channels, rows, columns]`, `padding` is the zeros before and after, by axis.
    ///
    /// `None` if a dimension is zero, the shapes do not match, the kernel exceeds the padded image, or a tensor would not
    /// fit in the address space.
    pub fn new(
        images: [usize; 4],
        weights: [usize; 4],
        padding: [[usize; 2]; 2],
        stride: [usize; 2],
        dilation: [usize; 2],
    ) -> Option<Self> {
        let ([batch, channels, size @ ..], [filters, expected, kernel @ ..]) = (images, weights);
        let sized = images.iter().chain(&weights).chain(&stride).chain(&dilation).all(|&length| length > 0);
        if !sized || channels != expected {
            return None;
        }
        let mut output = [0; 2];
        for axis in 0..2 {
            let reach = dilation[axis].checked_mul(kernel[axis] - 1)?;
            let padded = size[axis].checked_add(padding[axis][0])?.checked_add(padding[axis][1])?;
            output[axis] = padded.checked_sub(reach + 1)? / stride[axis] + 1;
        }
        parallel::values(&images)?;
        parallel::values(&weights)?;
        parallel::values(&[batch, filters, output[0], output[1]])?;
        let [padding, after] = [0, 1].map(|side| padding.map(|zeros| zeros[side]));
        let shape = Self { batch, channels, size, padding, after, filters, kernel, stride, dilation, output };
        parallel::values(&[shape.taps(), output[1].max(POSITIONS)])?;
        Some(shape)
    }

    /// Whether the kernels for stride 1 and equal padding on both sides compute it.
    pub(crate) fn is_plain(&self) -> bool {
        let Self { batch, channels, filters, size, padding, after, stride, .. } = *self;
        let reach = self.reach();
        let supported =
            stride == [1, 1] && padding == after && (0..2).all(|axis| padding[axis] <= reach[axis]);
        if !supported || self.prefers_patches() {
            return false;
        }
        // The wider of the padded images of this convolution and of the transposed one.
        let padded = self.padded();
        let [height, width] = [0, 1].map(|axis| padded[axis].max(size[axis].saturating_add(reach[axis])));
        [channels, filters].iter().all(|&planes| parallel::values(&[batch, planes, height, width]).is_some())
    }

    /// Whether the gradient of the weights reads phases of the image, which is faster with a stride if kernels overlap.
    pub(super) fn is_divided(&self) -> bool {
        let (Self { kernel, stride, .. }, [rows, columns]) = (*self, self.phases().plane);
        let overlap = (0..2).all(|axis| kernel[axis] > stride[axis]);
        let fits = parallel::values(&[self.channels, stride[0], stride[1], rows, columns]).is_some();
        stride != [1, 1] && overlap && fits && !self.prefers_patches()
    }

    /// Whether products with patches are faster where other kernels support the convolution as well.
    ///
    /// They are for small images with many channels: the others compute whole vectors of positions of one image.
    fn prefers_patches(&self) -> bool {
        8 * self.output_plane() <= self.channels.min(self.filters)
    }

    /// The convolution of the output's gradient that gives the gradient of the input.
    pub(super) fn transposed(&self) -> Self {
        let reach = self.reach();
        Self {
            channels: self.filters,
            size: self.output,
            padding: [reach[0] - self.padding[0], reach[1] - self.padding[1]],
            after: [reach[0] - self.after[0], reach[1] - self.after[1]],
            filters: self.channels,
            output: self.size,
            ..*self
        }
    }

    /// Distance between a kernel's first and last tap, by axis.
    fn reach(&self) -> [usize; 2] {
        [self.dilation[0] * (self.kernel[0] - 1), self.dilation[1] * (self.kernel[1] - 1)]
    }

    /// Shape of the images, `[batch, channels, height, width]`.
    pub fn inputs(&self) -> [usize; 4] {
        [self.batch, self.channels, self.size[0], self.size[1]]
    }

    /// Shape of the weights, `[filters, channels, rows, columns]`.
    pub fn weights(&self) -> [usize; 4] {
        [self.filters, self.channels, self.kernel[0], self.kernel[1]]
    }

    /// Shape of the output, `[batch, filters, height, width]`.
    pub fn outputs(&self) -> [usize; 4] {
        [self.batch, self.filters, self.output[0], self.output[1]]
    }

    /// Height and width with equal padding on both sides.
    pub(super) fn padded(&self) -> [usize; 2] {
        [self.size[0] + 2 * self.padding[0], self.size[1] + 2 * self.padding[1]]
    }

    pub(super) fn is_padded(&self) -> bool {
        self.padding != [0, 0]
    }

    /// Number of values of an image, without padding.
    pub(super) fn image(&self) -> usize {
        self.channels * self.size[0] * self.size[1]
    }

    /// Number of values of one output channel.
    pub(super) fn output_plane(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// Height and width of the output after 2 × 2 pooling.
    pub fn pooled(&self) -> [usize; 2] {
        self.output.map(|length| length / 2)
    }

    /// Number of values of one pooled output channel.
    pub(super) fn pooled_plane(&self) -> usize {
        self.pooled()[0] * self.pooled()[1]
    }

    /// Number of values of one image's output.
    pub(super) fn output_image(&self) -> usize {
        self.filters * self.output_plane()
    }

    /// Number of weights of a filter.
    pub fn taps(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// The phases of a plane.
    pub(super) fn phases(&self) -> Phases {
        Phases::new(self, 1)
    }

    /// Offset of each tap in a padded image, `[channels, phases]`, relative to the first tap, in the order of the weights.
    pub(super) fn offsets(&self) -> Vec<usize> {
        let (phases, starts) = (self.phases(), self.phases().starts(self));
        (0..self.channels)
            .flat_map(|channel| starts.iter().map(move |start| channel * phases.len() + start))
            .collect()
    }
}

/// The phases of a plane of images divided by the stride, `[stride, stride, rows, columns]`.
///
/// A phase has every `stride`-th row and column of a padded plane, so that a tap reads consecutive values for consecutive
/// outputs. There is one for each remainder of row and column; with stride 1, it is the padded plane.
#[derive(Clone, Copy, Debug)]
pub struct Phases {
    stride: [usize; 2],
    /// Rows and columns of a phase that taps read.
    pub plane: [usize; 2],
    /// The length of a phase is a multiple of it.
    multiple: usize,
}

impl Phases {
    pub fn new(shape: &Shape, multiple: usize) -> Self {
        let Shape { kernel, stride, dilation, output, .. } = *shape;
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
    pub fn starts(&self, shape: &Shape) -> Vec<usize> {
        let ([rows, columns], [down, right]) = (shape.kernel, shape.dilation);
        let start = |row, column| self.index(row * down, column * right);
        (0..rows).flat_map(|row| (0..columns).map(move |column| start(row, column))).collect()
    }

    /// Calls `run(at, index, count)` for runs of `count` values, which are consecutive in a phase and a stride apart in a
    /// plane of an image.
    #[inline(always)]
    pub fn lines(&self, shape: &Shape, mut run: impl FnMut(usize, usize, usize)) {
        let ([height, width], [top, left]) = (shape.size, shape.padding);
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
