//! Transform of images: each tile's 4 × 4 values, for one vector of tiles at a time.

use super::{POINTS, Tiles};
use crate::{
    conv::{Gradient, Whole, shape::Shape},
    simd::{Aligned, load, store},
};
use pulp::Simd;

/// Transformed image, one at a time.
pub struct Input {
    /// A padded channel, in rows of whole tiles.
    plane: Vec<f32>,
    /// The channel's even and odd columns.
    halves: [Vec<f32>; 2],
    /// The channel transformed along rows, `[4, even and odd, rows, columns]`.
    lines: Vec<f32>,
    /// `[spans, points, channels, tiles]`; see [`Tiles`].
    points: Aligned,
}

impl Input {
    pub fn new<S: Simd>(tiles: &Tiles) -> Self {
        let half = (2 * tiles.rows + 2) * (tiles.columns + 1);
        let halves = [0, 1].map(|_| vec![0.0; half + 2 * S::F32_LANES]);
        let points = Aligned::new(tiles.room.div_ceil(tiles.span) * POINTS * tiles.stride);
        Self { plane: vec![0.0; 2 * half], halves, lines: vec![0.0; 8 * line::<S>(tiles)], points }
    }

    /// One point of the span that begins at tile `at`: `[channels, tiles]`.
    #[inline(always)]
    pub fn point(&self, tiles: &Tiles, at: usize, point: usize) -> &[f32] {
        &self.points.values()[(at / tiles.span * POINTS + point) * tiles.stride..][..tiles.stride]
    }

    #[inline(always)]
    pub fn fill<S: Simd>(&mut self, simd: S, shape: &Shape, tiles: &Tiles, image: Gradient) {
        for channel in 0..shape.channels {
            match image.image(channel, 1, shape.size) {
                Gradient::Whole(channel) => self.split(shape, tiles, channel),
                Gradient::Pooled(channel) => {
                    channel.spread(shape, tiles.columns + 1, &mut self.plane, &mut self.halves);
                }
            }
            let [even, odd] = &self.halves;
            // SAFETY: the halves have the length that `new` gave them.
            unsafe { along_rows::<S>(simd, [even.as_ptr(), odd.as_ptr()], tiles, &mut self.lines) };
            along_columns::<S>(simd, &self.lines, tiles, channel, self.points.values_mut());
        }
    }

    /// Splits a channel into its even and odd columns.
    #[inline(always)]
    fn split(&mut self, shape: &Shape, tiles: &Tiles, image: Whole) {
        let ([rows, columns], [top, left]) = (shape.size, shape.padding);
        let width = 2 * tiles.columns + 2;
        let whole = image.output.is_none() && shape.size == [2 * tiles.rows + 2, width];
        let plane = if whole {
            image.values
        } else {
            // The padding stays zero.
            for row in 0..rows {
                let to = &mut self.plane[(top + row) * width + left..][..columns];
                image.part(row * columns, columns).copy_to(to);
            }
            &self.plane
        };
        let pairs = plane.as_chunks::<2>().0;
        let [even, odd] = &mut self.halves;
        let (evens, odds) = (&mut even[..pairs.len()], &mut odd[..pairs.len()]);
        for at in 0..pairs.len() {
            [evens[at], odds[at]] = pairs[at];
        }
    }
}

/// Length of the even or odd lines, with slack.
fn line<S: Simd>(tiles: &Tiles) -> usize {
    (tiles.rows + 1) * tiles.columns + 2 * S::F32_LANES
}

/// Transforms the rows of a channel.
///
/// # Safety
/// `halves` must have two rows more than the tiles, each one value longer than a row of tiles, plus two
/// vectors of slack.
#[inline(always)]
unsafe fn along_rows<S: Simd>(simd: S, [even, odd]: [*const f32; 2], tiles: &Tiles, lines: &mut [f32]) {
    let (lanes, line) = (S::F32_LANES, line::<S>(tiles));
    assert!(lines.len() >= 8 * line);
    for row in 0..2 * tiles.rows + 2 {
        let mut done = 0;
        while done < tiles.columns {
            // The last vector overlaps the one before it. A row shorter than a vector overwrites the beginning
            // of the next, which is written after it.
            let column = done.min(tiles.columns.saturating_sub(lanes));
            let from = row * (tiles.columns + 1) + column;
            let to = row % 2 * line + row / 2 * tiles.columns + column;
            // SAFETY: the caller's contract and the assertion.
            unsafe {
                let (d0, d1) = (load::<S>(even.add(from)), load::<S>(odd.add(from)));
                let (d2, d3) = (load::<S>(even.add(from + 1)), load::<S>(odd.add(from + 1)));
                let to = lines.as_mut_ptr().add(to);
                store::<S>(to, simd.sub_f32s(d0, d2));
                store::<S>(to.add(2 * line), simd.add_f32s(d1, d2));
                store::<S>(to.add(4 * line), simd.sub_f32s(d2, d1));
                store::<S>(to.add(6 * line), simd.sub_f32s(d3, d1));
            }
            done = column + lanes;
        }
    }
}

/// Transforms the columns, for which the tiles of all rows are contiguous.
#[inline(always)]
fn along_columns<S: Simd>(simd: S, lines: &[f32], tiles: &Tiles, channel: usize, points: &mut [f32]) {
    let line = line::<S>(tiles);
    for at in (0..tiles.room).step_by(S::F32_LANES) {
        let (first, within) = (at / tiles.span * tiles.span, at % tiles.span);
        let span = tiles.span.min(tiles.room - first);
        let to = first / tiles.span * POINTS * tiles.stride + channel * span + within;
        let to = &mut points[to..][..(POINTS - 1) * tiles.stride + S::F32_LANES];
        for point in 0..4 {
            let from = &lines[2 * point * line + at..][..line + tiles.columns + S::F32_LANES];
            // SAFETY: the slices include the last vector that is accessed.
            unsafe {
                let (even, odd) = (from.as_ptr(), from.as_ptr().add(line));
                let (d0, d1) = (load::<S>(even), load::<S>(odd));
                let (d2, d3) = (load::<S>(even.add(tiles.columns)), load::<S>(odd.add(tiles.columns)));
                let to = to.as_mut_ptr().add(point * tiles.stride);
                store::<S>(to, simd.sub_f32s(d0, d2));
                store::<S>(to.add(4 * tiles.stride), simd.add_f32s(d1, d2));
                store::<S>(to.add(8 * tiles.stride), simd.sub_f32s(d2, d1));
                store::<S>(to.add(12 * tiles.stride), simd.sub_f32s(d3, d1));
            }
        }
    }
}
