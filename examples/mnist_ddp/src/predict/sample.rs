//! A plane of numbers with scaling, thickening and rotation.

use burn_ddp::data::Orientation;

/// Numbers in rows of equal length.
#[derive(Clone, Debug)]
pub(super) struct Plane {
    width: usize,
    values: Vec<f32>,
}

impl Plane {
    /// A plane of `values`, which must be whole rows.
    pub fn new(width: usize, values: Vec<f32>) -> Self {
        debug_assert!(width > 0 && values.len().is_multiple_of(width));
        Self { width, values }
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn height(&self) -> usize {
        self.values.len() / self.width
    }

    pub fn values(&self) -> &[f32] {
        &self.values
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

    /// Makes the plane upright.
    pub fn upright(self, Orientation { transposed, mirrored, flipped }: Orientation) -> Self {
        let mut plane = if transposed { self.transposed() } else { self };
        if mirrored {
            plane.values.chunks_mut(plane.width).for_each(<[f32]>::reverse);
        }
        if flipped {
            plane.values = plane.values.rchunks(plane.width).flatten().copied().collect();
        }
        plane
    }

    /// Scales both sides by `scale`; they stay at least 1.
    pub fn scaled(&self, scale: f32) -> Self {
        let side = |length: usize| ((length as f32 * scale).round() as usize).max(1);
        self.resized([side(self.width), side(self.height())])
    }

    /// Resizes by area averaging.
    pub fn resized(&self, [width, height]: [usize; 2]) -> Self {
        if [width, height] == [self.width, self.height()] {
            return self.clone();
        }
        self.rows_resized(width).transposed().rows_resized(height).transposed()
    }

    fn rows_resized(&self, width: usize) -> Self {
        let scale = self.width as f32 / width as f32;
        // The old columns that a new one covers, with weights.
        let cover = |new: usize| {
            let (from, to) = (new as f32 * scale, (new + 1) as f32 * scale);
            let (first, last) = (from.floor() as usize, (to.ceil() as usize).min(self.width));
            let part = |x: usize| (to.min((x + 1) as f32) - from.max(x as f32)).max(0.0) / scale;
            (first, (first..last).map(part).collect::<Vec<_>>())
        };
        let columns: Vec<_> = (0..width).map(cover).collect();
        let mean = |row: &[f32], (first, parts): &(usize, Vec<f32>)| {
            parts.iter().zip(&row[*first..]).map(|(part, value)| part * value).sum::<f32>()
        };
        let rows = self.values.chunks(self.width);
        Self { width, values: rows.flat_map(|row| columns.iter().map(|c| mean(row, c))).collect() }
    }

    /// Replaces each number by the maximum within `radius`, horizontally and vertically.
    pub fn thickened(&self, radius: usize) -> Self {
        self.rows_thickened(radius).transposed().rows_thickened(radius).transposed()
    }

    fn rows_thickened(&self, radius: usize) -> Self {
        let largest = |row: &[f32], x: usize| {
            row[x.saturating_sub(radius)..(x + radius + 1).min(row.len())].iter().copied().fold(0.0, f32::max)
        };
        let rows = self.values.chunks(self.width);
        let values = rows.flat_map(|row| (0..self.width).map(|x| largest(row, x)).collect::<Vec<_>>());
        Self { width: self.width, values: values.collect() }
    }

    /// Adds `margin` columns and rows of 0 on every side.
    pub fn framed(&self, margin: usize) -> Self {
        let width = self.width + 2 * margin;
        let mut values = vec![0.0; width * (self.height() + 2 * margin)];
        for (row, old) in values.chunks_mut(width).skip(margin).zip(self.values.chunks(self.width)) {
            row[margin..margin + self.width].copy_from_slice(old);
        }
        Self { width, values }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resizing_keeps_a_flat_plane_flat_and_the_middle_in_the_middle() {
        let flat = Plane::new(7, vec![0.5; 35]);
        for size in [[3, 2], [20, 20], [1, 1], [7, 5]] {
            let resized = flat.resized(size);
            assert_eq!([resized.width(), resized.height()], size);
            assert!(resized.values().iter().all(|value| (value - 0.5).abs() < 1e-6));
        }
        let mut cross = Plane::new(9, vec![0.0; 81]);
        cross.values[40] = 1.0;
        let small = cross.resized([3, 3]);
        assert!((small.at(1, 1) - 1.0 / 9.0).abs() < 1e-6 && small.values().iter().sum::<f32>() < 0.12);
        let large = small.resized([9, 9]);
        assert!((large.at(3, 5) - 1.0 / 9.0).abs() < 1e-6 && large.at(2, 5).abs() < 1e-6);
    }

    #[test]
    fn a_plane_is_rotated_by_exif_orientation() {
        let plane = Plane::new(2, vec![1.0, 2.0, 3.0, 4.0]);
        let turn = |transposed, mirrored, flipped| {
            plane.clone().upright(Orientation { transposed, mirrored, flipped }).values
        };
        assert_eq!(turn(false, true, true), [4.0, 3.0, 2.0, 1.0]);
        // 6: the camera was rotated 90° counterclockwise, so that the image is rotated clockwise.
        assert_eq!(turn(true, true, false), [3.0, 1.0, 4.0, 2.0]);
        assert_eq!(turn(true, false, true), [2.0, 4.0, 1.0, 3.0]);
    }

    #[test]
    fn a_dot_is_thickened_on_all_sides() {
        let dot = Plane::new(1, vec![1.0]).framed(2);
        assert_eq!((dot.width(), dot.height(), dot.at(2, 2)), (5, 5, 1.0));
        assert_eq!(dot.thickened(1).values().iter().sum::<f32>(), 9.0);
        assert_eq!(dot.part([1, 2], [2, 1]).values(), [0.0, 1.0]);
    }
}
