//! Where in memory the taps of a kernel meet an image.

use crate::parallel;

/// A convolution of stride 1 over images `[batch, channels, height, width]`.
///
/// The kernels read and write memory at places that follow from these fields, so only
/// [`Geometry::new`], which checks them, makes one:
///
/// ```compile_fail,E0451
/// # use kernels::conv::Geometry;
/// let covered = Geometry::new([1, 1, 5, 5], [1, 1, 3, 3], [0, 0], [1, 1]).unwrap();
/// let larger = Geometry { size: [500, 500], ..covered };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Images.
    pub(super) batch: usize,
    /// Input channels.
    pub(super) channels: usize,
    /// Height and width of an image, without padding.
    pub(super) size: [usize; 2],
    /// Zeros on each side.
    pub(super) padding: [usize; 2],
    /// Output channels.
    pub(super) filters: usize,
    /// Height and width of the kernel.
    pub(super) kernel: [usize; 2],
    /// Distance of two taps in each direction; 1 is a plain convolution.
    pub(super) dilation: [usize; 2],
}

impl Geometry {
    /// From an image's shape and a weight's, `[filters, channels, height, width]`. `None` if there is
    /// nothing to compute, the shapes do not fit, the padding is more than a kernel's reach, or a
    /// tensor would be larger than memory can be.
    pub fn new(
        image: [usize; 4],
        weight: [usize; 4],
        padding: [usize; 2],
        dilation: [usize; 2],
    ) -> Option<Self> {
        let [batch, channels, height, width] = image;
        let [filters, weight_channels, kernel_height, kernel_width] = weight;
        let kernel = [kernel_height, kernel_width];
        let sized = image.iter().chain(&weight).chain(&dilation).all(|&length| length > 0);
        if !sized || weight_channels != channels {
            return None;
        }
        let (size, mut widest) = ([height, width], [0; 2]);
        for axis in 0..2 {
            let reach = dilation[axis].checked_mul(kernel[axis] - 1)?;
            let padded = size[axis].checked_add(padding[axis].checked_mul(2)?)?;
            if padding[axis] > reach || padded <= reach {
                return None;
            }
            // The padded image of this convolution or of the transposed one, whichever is wider.
            widest[axis] = padded.max(size[axis].checked_add(reach)?);
        }
        let [height, width] = widest;
        parallel::values(&[batch, channels, height, width])?;
        parallel::values(&[batch, filters, height, width])?;
        parallel::values(&weight)?;
        Some(Self { batch, channels, size, padding, filters, kernel, dilation })
    }

    /// The convolution that gives the gradient of the input: over the gradient of the output, with as
    /// much padding as a kernel's reach leaves.
    pub(super) fn transposed(&self) -> Self {
        let reach = self.reach();
        Self {
            channels: self.filters,
            size: self.output(),
            padding: [reach[0] - self.padding[0], reach[1] - self.padding[1]],
            filters: self.channels,
            ..*self
        }
    }

    /// From a kernel's first tap to its last.
    fn reach(&self) -> [usize; 2] {
        [self.dilation[0] * (self.kernel[0] - 1), self.dilation[1] * (self.kernel[1] - 1)]
    }

    /// Height and width of an output.
    pub fn output(&self) -> [usize; 2] {
        let ([height, width], reach) = (self.padded(), self.reach());
        [height - reach[0], width - reach[1]]
    }

    /// `[batch, channels, height, width]` of what goes in.
    pub fn inputs(&self) -> [usize; 4] {
        [self.batch, self.channels, self.size[0], self.size[1]]
    }

    /// `[batch, filters, height, width]` of what comes out.
    pub fn outputs(&self) -> [usize; 4] {
        let [height, width] = self.output();
        [self.batch, self.filters, height, width]
    }

    /// `[filters, channels, height, width]` of the weights.
    pub fn weights(&self) -> [usize; 4] {
        [self.filters, self.channels, self.kernel[0], self.kernel[1]]
    }

    /// Height and width with the padding.
    pub(super) fn padded(&self) -> [usize; 2] {
        [self.size[0] + 2 * self.padding[0], self.size[1] + 2 * self.padding[1]]
    }

    pub(super) fn is_padded(&self) -> bool {
        self.padding != [0, 0]
    }

    /// Values of one image, without padding.
    pub(super) fn image(&self) -> usize {
        self.channels * self.size[0] * self.size[1]
    }

    /// Values of one channel of an output.
    pub(super) fn output_plane(&self) -> usize {
        self.output()[0] * self.output()[1]
    }

    /// Height and width of what is pooled by windows of 2 × 2.
    pub fn pooled(&self) -> [usize; 2] {
        self.output().map(|length| length / 2)
    }

    /// Values of one channel of it.
    pub(super) fn pooled_plane(&self) -> usize {
        self.pooled()[0] * self.pooled()[1]
    }

    /// Values of one output.
    pub(super) fn output_image(&self) -> usize {
        self.filters * self.output_plane()
    }

    /// Weights of one filter.
    pub fn taps(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// Of each tap, in the order of the weights, the distance in a padded image from the value that it
    /// meets to the first that it meets.
    pub(super) fn offsets(&self) -> Vec<usize> {
        let [height, width] = self.padded();
        let mut offsets = Vec::with_capacity(self.taps());
        for channel in 0..self.channels {
            for y in 0..self.kernel[0] {
                for x in 0..self.kernel[1] {
                    offsets.push((channel * height + y * self.dilation[0]) * width + x * self.dilation[1]);
                }
            }
        }
        offsets
    }
}
