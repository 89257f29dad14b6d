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

use super::{geometry::Geometry, patches};

/// Number of values of a transformed tile.
const POINTS: usize = 16;
/// Point that contributes to all outputs of a tile with factor one.
///
/// The bias is added to it, and the gradient of the bias is read from it.
const MIDDLE: usize = 5;

/// Maximum number of values of a transformed image (8 MiB) and of all transformed filters (16 MiB).
///
/// Above it, memory accesses cost more than the saved multiplications.
const MAX_IMAGE: usize = 1 << 21;
const MAX_FILTERS: usize = 1 << 22;

/// Maximum number of values of transformed filters that stay in the cache from image to image.
const CACHED_FILTERS: usize = 1 << 20;

/// Multiplications for each pair of a channel and a filter that must be saved with small images.
const SAVED: usize = 1 << 10;

/// Whether this algorithm is faster than direct convolution or patches.
///
/// It is for 3 × 3 kernels, enough channels and filters to outweigh the transforms, outputs larger than a
/// tile, and transformed data that fits in the cache. A batch of small images must outweigh the transform of the filters.
pub fn is_faster(geometry: &Geometry) -> bool {
    let Geometry { batch, channels, filters, kernel, dilation, .. } = *geometry;
    if kernel != [3, 3] || dilation != [1, 1] || geometry.output.iter().any(|&length| length < 3) {
        return false;
    }
    let tiles: usize = geometry.output.iter().map(|length| length.div_ceil(2)).product();
    let saved = batch.saturating_mul(9 * geometry.output_plane() - POINTS * tiles);
    channels.min(filters) >= 16
        && channels * filters >= 256
        && channels.max(filters) * tiles * POINTS <= MAX_IMAGE
        && channels * filters * POINTS <= MAX_FILTERS
        && (saved >= SAVED || !patches::are_faster(geometry))
}

/// The tiles of the outputs of some images.
#[derive(Clone, Copy)]
struct Tiles {
    /// Of an image.
    rows: usize,
    columns: usize,
    /// Number of images, whose tiles are in one span if there are several.
    images: usize,
    /// Number of tiles, rounded up to whole vectors.
    room: usize,
    /// Tiles per span of transformed images, `[spans, points, channels, tiles]`; the last may have fewer.
    span: usize,
    /// Distance between points in values.
    ///
    /// One vector longer than needed, so that the points do not map to the same cache lines.
    stride: usize,
}

impl Tiles {
    /// One span of all tiles of an image.
    fn of_image(geometry: &Geometry, lanes: usize) -> Self {
        let [rows, columns] = geometry.output.map(|length| length.div_ceil(2));
        let room = (rows * columns).next_multiple_of(lanes);
        Self { rows, columns, images: 1, room, span: room, stride: geometry.channels * room + lanes }
    }

    /// Spans of `span` tiles: of an image or, if it does not fill a vector or filters should be read for several images at
    /// once, of equal parts of `batch` images.
    fn in_spans(geometry: &Geometry, lanes: usize, span: usize, batch: usize) -> Self {
        let one = Self::of_image(geometry, lanes);
        let cached = geometry.channels * geometry.filters * POINTS <= CACHED_FILTERS;
        let most = if one.count() >= lanes && cached { 1 } else { (span / one.count()).max(1) };
        let images = batch.div_ceil(batch.div_ceil(most));
        let room = (images * one.count()).next_multiple_of(lanes);
        Self { images, room, span, stride: geometry.channels * span + lanes, ..one }
    }

    /// Number of tiles of an image.
    fn count(&self) -> usize {
        self.rows * self.columns
    }
}
