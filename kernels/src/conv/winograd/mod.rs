//! 3 × 3 convolution by Winograd's minimal filtering F(2 × 2, 3 × 3).
//!
//! It takes 16 multiplications for four outputs instead of 36. Source: Lavin and Gray, "Fast Algorithms
//! for Convolutional Neural Networks" (arXiv:1509.09308).
//!
//! Outputs are computed in tiles of 2 × 2, each from 4 × 4 values of the image. Image, kernel and output
//! are transformed along columns and rows (`d` image, `g` kernel, `m` products, `y` output):
//!
//! ```text
//! m0 = (d0 - d2) g0      m1 = (d1 + d2) (g0 + g1 + g2) / 2      y0 = m0 + m1 + m2
//! m3 = (d3 - d1) g2      m2 = (d2 - d1) (g0 - g1 + g2) / 2      y1 = m1 - m2 + m3
//! ```
//!
//! The products are sixteen matrix products, filters × tiles, summed over channels. The gradient of the
//! input is another such convolution; the gradient of the weights uses the transposed form, [`gradients`].
//!
//! The factors are 1 and 1/2, so that the results are as precise as those of direct convolution. A NaN or
//! infinite input value makes the whole tile NaN.

mod forward;
mod input;
mod outputs;
mod products;
mod transposed;
mod weights;

pub use forward::{forward, forward_pooled};
pub use weights::gradients;

use super::shape::Shape;

/// Number of values of a transformed tile.
const POINTS: usize = 16;
/// Point that contributes to all outputs of a tile with factor one.
///
/// The bias is added to it, and the gradient of the bias is read from it.
const MIDDLE: usize = 5;

/// Maximum number of values (8 MiB) of a transformed image or of all transformed filters.
///
/// Above it, memory accesses cost more than the saved multiplications.
const MAX_VALUES: usize = 1 << 21;

/// Whether this algorithm is faster than direct convolution.
///
/// It is for 3 × 3 kernels, enough channels and filters to outweigh the transforms, outputs larger than a
/// tile, and transformed data that fits in the cache.
pub fn is_faster(shape: &Shape) -> bool {
    let Shape { channels, filters, kernel, dilation, .. } = *shape;
    let tiles: usize = shape.output.iter().map(|length| length.div_ceil(2)).product();
    let near =
        [channels * tiles, filters * tiles, channels * filters].map(|pairs| pairs * POINTS <= MAX_VALUES);
    kernel == [3, 3]
        && dilation == [1, 1]
        && channels.min(filters) >= 16
        && channels * filters >= 256
        && shape.output.iter().all(|&length| length > 2)
        && near == [true; 3]
}

/// The tiles of an output.
#[derive(Clone, Copy)]
struct Tiles {
    rows: usize,
    columns: usize,
    /// Number of tiles, rounded up to whole vectors.
    room: usize,
    /// Tiles per span of a transformed image, `[spans, points, channels, tiles]`; the last may have fewer.
    span: usize,
    /// Distance between points in values.
    ///
    /// One vector longer than needed, so that the points do not map to the same cache lines.
    stride: usize,
}

impl Tiles {
    /// Spans of `vectors` vectors of tiles, or one span of all tiles.
    fn new(shape: &Shape, lanes: usize, vectors: Option<usize>) -> Self {
        let [rows, columns] = shape.output.map(|length| length.div_ceil(2));
        let room = (rows * columns).next_multiple_of(lanes);
        let span = vectors.map_or(room, |vectors| vectors * lanes);
        Self { rows, columns, room, span, stride: shape.channels * span + lanes }
    }

    fn count(&self) -> usize {
        self.rows * self.columns
    }
}
