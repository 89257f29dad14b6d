//! Image files as planes of luminance and opacity.

use anyhow::{Context, Result};
use burn_ddp::data::{self, Filter, luma, resample};
use std::{fs, path::Path};

/// Maximum side; larger images are reduced.
const LARGEST: usize = 1024;

/// A drawn, photographed or scanned image.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Luminance, from 0 (black) to 1 (white).
    pub luma: Plane,
    /// Opacity, from 0 (transparent) to 1 (opaque).
    pub alpha: Plane,
}

impl Picture {
    /// Reads a PNG or JPEG file, whose type is detected from its content.
    ///
    /// # Errors
    /// If the file cannot be read or is not a complete image of these types. The error names the file.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let file = data::Picture::from_file(&bytes).with_context(|| path.display().to_string())?;
        let shade = |pixel: &[u8]| match pixel {
            [r, g, b, ..] => luma(*r, *g, *b) / 255.0,
            [grey, ..] => f32::from(*grey) / 255.0,
            [] => 0.0,
        };
        let opacity = |pixel: &[u8]| match pixel {
            [.., alpha] if file.has_opacity() => f32::from(*alpha) / 255.0,
            _ => 1.0,
        };
        let scale = (LARGEST as f32 / file.width.max(file.height) as f32).min(1.0);
        let plane = |values: Vec<f32>| Plane::new(file.width, values).scaled(scale);
        let pixels = || file.pixels.chunks(file.channels);
        Ok(Self { luma: plane(pixels().map(shade).collect()), alpha: plane(pixels().map(opacity).collect()) })
    }
}

/// Numbers in rows of equal length.
#[derive(Clone, Debug)]
pub struct Plane {
    pub width: usize,
    pub values: Vec<f32>,
}

impl Plane {
    /// A plane of `values`, which must be whole rows.
    pub fn new(width: usize, values: Vec<f32>) -> Self {
        debug_assert!(width > 0 && values.len().is_multiple_of(width));
        Self { width, values }
    }

    pub fn height(&self) -> usize {
        self.values.len() / self.width
    }

    pub fn at(&self, x: usize, y: usize) -> f32 {
        self.values[y * self.width + x]
    }

    /// Applies `change` to each number.
    pub fn map(&self, change: impl Fn(f32) -> f32) -> Self {
        Self { width: self.width, values: self.values.iter().map(|value| change(*value)).collect() }
    }

    /// The rectangle that starts at column `x` and row `y`.
    pub fn part(&self, [x, y]: [usize; 2], [width, height]: [usize; 2]) -> Self {
        let rows = self.values.chunks(self.width).skip(y).take(height);
        Self::new(width, rows.flat_map(|row| &row[x..x + width]).copied().collect())
    }

    /// Exchanges rows and columns.
    fn transposed(&self) -> Self {
        let columns = (0..self.width).flat_map(|x| self.values[x..].iter().step_by(self.width));
        Self { width: self.height(), values: columns.copied().collect() }
    }

    /// Scales both sides by `scale`; they stay at least 1.
    pub fn scaled(&self, scale: f32) -> Self {
        let side = |length: usize| ((length as f32 * scale).round() as usize).max(1);
        let (width, height) = (side(self.width), side(self.height()));
        Self::new(width, resample(&self.values, [self.width, 1], [width, height], Filter::Area))
    }

    /// Adds `radius` columns and rows on every side, and replaces each number by the maximum within `radius`,
    /// horizontally and vertically.
    pub fn thickened(&self, radius: usize) -> Self {
        self.rows_thickened(radius).transposed().rows_thickened(radius).transposed()
    }

    fn rows_thickened(&self, radius: usize) -> Self {
        let width = self.width + 2 * radius;
        let largest = |row: &[f32], x: usize| {
            let (from, to) = (x.saturating_sub(2 * radius), (x + 1).min(row.len()));
            row[from..to].iter().copied().fold(0.0, f32::max)
        };
        let rows = self.values.chunks(self.width);
        let values = rows.flat_map(|row| (0..width).map(|x| largest(row, x)).collect::<Vec<_>>());
        Self { width, values: values.collect() }
    }
}
