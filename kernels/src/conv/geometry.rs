//! Shapes and memory offsets of a convolution.

use crate::parallel;

/// A convolution of stride 1 over images `[batch, channels, height, width]`.
///
/// The kernels compute memory offsets from these fields, which [`Patches`](super::patches::Patches) and [`Geometry::new`]
/// have validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of images.
    pub(super) batch: usize,
    /// Input channels.
    pub(super) channels: usize,
    /// Height and width of an image, without padding.
    pub(super) size: [usize; 2],
    /// Zeros on each side, by axis.
    pub(super) padding: [usize; 2],
    /// Output channels.
    pub(super) filters: usize,
    /// Height and width of the kernel.
    pub(super) kernel: [usize; 2],
    /// Distance between taps, by axis.
    pub(super) dilation: [usize; 2],
}

impl Geometry {
    /// A convolution of shapes that [`Patches`](super::patches::Patches) accepts.
    ///
    /// `None` if the padding exceeds the kernel's reach, or a tensor would not fit in the address space.
    pub fn new(
        image: [usize; 4],
        weight: [usize; 4],
        padding: [usize; 2],
        dilation: [usize; 2],
    ) -> Option<Self> {
        let ([batch, channels, size @ ..], [filters, _, kernel @ ..]) = (image, weight);
        let geometry = Self { batch, channels, size, padding, filters, kernel, dilation };
        let (padded, reach) = (geometry.padded(), geometry.reach());
        // The wider of the padded images of this convolution and of the transposed one.
        let [height, width] = [0, 1].map(|axis| padded[axis].max(size[axis].saturating_add(reach[axis])));
        parallel::values(&[batch, channels, height, width])?;
        parallel::values(&[batch, filters, height, width])?;
        (padding[0] <= reach[0] && padding[1] <= reach[1]).then_some(geometry)
    }

    /// The convolution of the output's gradient that gives the gradient of the input.
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

    /// Distance between a kernel's first and last tap, by axis.
    fn reach(&self) -> [usize; 2] {
        [self.dilation[0] * (self.kernel[0] - 1), self.dilation[1] * (self.kernel[1] - 1)]
    }

    /// Height and width of an output.
    pub fn output(&self) -> [usize; 2] {
        let ([height, width], reach) = (self.padded(), self.reach());
        [height - reach[0], width - reach[1]]
    }

    /// Input shape, `[batch, channels, height, width]`.
    pub fn inputs(&self) -> [usize; 4] {
        [self.batch, self.channels, self.size[0], self.size[1]]
    }

    /// Height and width with padding.
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
        self.output()[0] * self.output()[1]
    }

    /// Height and width of the output after 2 × 2 pooling.
    pub fn pooled(&self) -> [usize; 2] {
        self.output().map(|length| length / 2)
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

    /// Offset of each tap in a padded image, relative to the first tap, in the order of the weights.
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
