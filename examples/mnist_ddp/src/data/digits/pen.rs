//! Pen model: smooth curves through control points, and their anti-aliased rendering.

use super::{PIXELS, Rng, SIDE, glyphs::Point};

/// Point of a stroke.
#[derive(Clone, Copy)]
pub struct Sample {
    /// Position; in pixels when it is rendered.
    pub at: Point,
    /// Half of the stroke's width.
    pub radius: f32,
}

/// Number of line segments between two control points.
const PIECES: usize = 5;

/// Appends the Catmull–Rom curve through `points` as line segments.
///
/// A point repeated in a row is a corner. Radii are set by the caller.
pub fn curve(points: &[Point], out: &mut Vec<Sample>) {
    let mut push = |at| out.push(Sample { at, radius: 1.0 });
    let mut rest = points;
    while let Some(&first) = rest.first() {
        let run = rest.windows(2).position(|pair| pair[0] == pair[1]).map_or(rest.len(), |i| i + 1);
        push(first);
        for i in 1..run {
            // The first and last points are extrapolated by reflection.
            let before = if i >= 2 { rest[i - 2] } else { mirrored(rest[1], rest[0]) };
            let after = if i + 1 < run { rest[i + 1] } else { mirrored(rest[i - 1], rest[i]) };
            for piece in 1..=PIECES {
                push(between(before, rest[i - 1], rest[i], after, piece as f32 / PIECES as f32));
            }
        }
        rest = &rest[run..];
    }
}

fn mirrored(point: Point, centre: Point) -> Point {
    [2.0 * centre[0] - point[0], 2.0 * centre[1] - point[1]]
}

/// Returns the point at `t` in 0..=1 on the Catmull–Rom curve from `b` to `c`.
fn between(a: Point, b: Point, c: Point, d: Point, t: f32) -> Point {
    std::array::from_fn(|k| {
        let linear = c[k] - a[k];
        let square = 2.0 * a[k] - 5.0 * b[k] + 4.0 * c[k] - d[k];
        let cube = 3.0 * (b[k] - c[k]) + d[k] - a[k];
        b[k] + 0.5 * t * (linear + t * (square + t * cube))
    })
}

/// Appearance of the ink after scanning.
pub struct Ink {
    /// Width of the grey edge in pixels.
    pub softness: f32,
    /// Roughness of the edge in pixels.
    pub roughness: f32,
    /// Largest pixel value, 0..=255.
    pub brightness: f32,
}

/// Canvas of 28×28 pixels that stores the signed depth of each pixel inside the ink.
pub struct Sheet {
    depth: [f32; PIXELS],
}

impl Sheet {
    pub fn blank() -> Self {
        Sheet { depth: [f32::NEG_INFINITY; PIXELS] }
    }

    /// Draws the line segment from `a` to `b`, whose width changes linearly.
    pub fn line(&mut self, a: Sample, b: Sample) {
        let reach = a.radius.max(b.radius) + 1.5;
        let span = |k: usize| {
            let low = (a.at[k].min(b.at[k]) - reach).ceil().max(0.0) as usize;
            let high = (a.at[k].max(b.at[k]) + reach).floor().min(SIDE as f32 - 1.0);
            // A negative end becomes an empty range.
            low..(high + 1.0).max(0.0) as usize
        };
        let [dx, dy] = [b.at[0] - a.at[0], b.at[1] - a.at[1]];
        let inverse = 1.0 / (dx * dx + dy * dy).max(1e-6);
        for row in span(1) {
            let py = row as f32 - a.at[1];
            for column in span(0) {
                let px = column as f32 - a.at[0];
                let t = ((px * dx + py * dy) * inverse).clamp(0.0, 1.0);
                let [ex, ey] = [px - t * dx, py - t * dy];
                let depth = a.radius + t * (b.radius - a.radius) - (ex * ex + ey * ey).sqrt();
                let pixel = &mut self.depth[row * SIDE + column];
                *pixel = pixel.max(depth);
            }
        }
    }

    /// Renders the image, white on black.
    pub fn expose(&self, ink: &Ink, rng: &mut Rng, out: &mut [u8]) {
        let scale = 1.0 / ink.softness;
        for (pixel, &depth) in out.iter_mut().zip(&self.depth) {
            *pixel = if depth < -1.5 {
                0
            } else {
                let rough = depth + ink.roughness * rng.normal();
                ((0.5 + rough * scale).clamp(0.0, 1.0) * ink.brightness) as u8
            };
        }
    }
}
