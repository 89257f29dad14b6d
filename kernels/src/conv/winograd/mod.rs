//! Convolution with kernels of 3 × 3 by Winograd's minimal filtering, F(2 × 2, 3 × 3), after Lavin and
//! Gray, "Fast Algorithms for Convolutional Neural Networks" (arXiv:1509.09308): sixteen
//! multiplications for four outputs in place of 36.
//!
//! An output is cut into tiles of 2 × 2, each of which sees 4 × 4 values of the image. Image, kernel and
//! output are transformed by sums and differences, along columns and along rows alike (`d` the image, `g`
//! the kernel, `m` their products, `y` the output):
//!
//! ```text
//! m0 = (d0 - d2) g0      m1 = (d1 + d2) (g0 + g1 + g2) / 2      y0 = m0 + m1 + m2
//! m3 = (d3 - d1) g2      m2 = (d2 - d1) (g0 - g1 + g2) / 2      y1 = m1 - m2 + m3
//! ```
//!
//! Between the transforms stand sixteen products of matrices: of all filters with all tiles, summed over
//! the channels. The gradient of the input is such a convolution itself; that of the weights goes the
//! transposed way, [`gradients`].
//!
//! The factors are 1 and a half, so that results are as exact as those of plain sums. But what is not a
//! number makes the whole tile not a number.

mod forward;
mod input;
mod outputs;
mod products;
mod transposed;
mod weights;

pub use forward::{forward, forward_pooled};
pub use weights::gradients;

use super::Geometry;

/// Values of a transformed tile.
const POINTS: usize = 16;
/// The one that counts in all outputs of a tile with a factor of one: a bias goes in there, and its gradient
/// comes out.
const MIDDLE: usize = 5;

/// Values of a transformed image, or of all transformed filters, above which memory takes what fewer
/// multiplications save: 8 MiB.
const MOST: usize = 1 << 21;

/// Whether this way is taken: for kernels of 3 × 3 with so many channels and filters that the products
/// outweigh the transforms, outputs larger than a tile, and images and filters that stay near.
pub fn pays(geometry: &Geometry) -> bool {
    let Geometry { channels, filters, kernel, dilation, .. } = *geometry;
    let tiles: usize = geometry.output().iter().map(|length| length.div_ceil(2)).product();
    let near = [channels * tiles, filters * tiles, channels * filters].map(|pairs| pairs * POINTS <= MOST);
    kernel == [3, 3]
        && dilation == [1, 1]
        && channels.min(filters) >= 16
        && channels * filters >= 512
        && geometry.output().iter().all(|&length| length > 2)
        && near == [true; 3]
}

/// The tiles of an output.
#[derive(Clone, Copy)]
struct Tiles {
    rows: usize,
    columns: usize,
    /// All of them, rounded up to whole vectors.
    room: usize,
    /// Tiles that are together in a transformed image, `[spans, points, channels, tiles]`. The last span
    /// may have fewer.
    span: usize,
    /// Values from one point's to the next. A vector more than needed, lest all points meet in the same
    /// lines of the cache.
    stride: usize,
}

impl Tiles {
    /// With `vectors` of tiles in a span, or all of them.
    fn new(geometry: &Geometry, lanes: usize, vectors: Option<usize>) -> Self {
        let [rows, columns] = geometry.output().map(|length| length.div_ceil(2));
        let room = (rows * columns).next_multiple_of(lanes);
        let span = vectors.map_or(room, |vectors| vectors * lanes);
        Self { rows, columns, room, span, stride: geometry.channels * span + lanes }
    }

    fn count(&self) -> usize {
        self.rows * self.columns
    }
}
