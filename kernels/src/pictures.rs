//! Pixels of pictures: resampling, windows, sums of channels, and a network's input.
//!
//! Pixels are `[rows, columns, channels]`.

/// How values are weighted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A triangle, as Pillow's `BILINEAR`: its support grows when a picture shrinks.
    Triangle,
    /// The mean over the area that a new value covers.
    Area,
}

impl Filter {
    /// Largest distance of a value with a weight, if a new value covers `scale` values.
    fn support(self, scale: f64) -> f64 {
        match self {
            Filter::Triangle => scale.max(1.0),
            Filter::Area => (scale + 1.0) / 2.0,
        }
    }

    /// Weight of a value at `distance` from the centre of the new value.
    fn weight(self, distance: f64, scale: f64) -> f64 {
        let weight = match self {
            Filter::Triangle => 1.0 - distance / scale.max(1.0),
            Filter::Area => ((scale + 1.0) / 2.0 - distance).min(scale).min(1.0),
        };
        weight.max(0.0)
    }

    /// For each of `to` positions, the first of `from` positions that it depends on, and the weights from there.
    fn weights(self, from: usize, to: usize) -> Vec<(usize, Vec<f32>)> {
        let scale = from as f64 / to as f64;
        let support = self.support(scale);
        let position = |index: usize| {
            let centre = (index as f64 + 0.5) * scale;
            let first = (centre - support).floor().max(0.0) as usize;
            let last = ((centre + support).ceil() as usize).min(from);
            let weight = |at: usize| self.weight((at as f64 + 0.5 - centre).abs(), scale);
            let sum: f64 = (first..last).map(weight).sum();
            (first, (first..last).map(|at| (weight(at) / sum) as f32).collect())
        };
        (0..to).map(position).collect()
    }
}

/// Resamples values to another number of columns and rows.
pub fn resample(values: &[f32], line: [usize; 2], to: [usize; 2], filter: Filter) -> Vec<f32> {
    resample_any(values, line, to, filter)
}

/// Resamples pixels to another number of columns and rows.
pub fn resample_pixels(pixels: &[u8], line: [usize; 2], to: [usize; 2], filter: Filter) -> Vec<u8> {
    let values = resample_any(pixels, line, to, filter);
    values.into_iter().map(|value| value.round().clamp(0.0, 255.0) as u8).collect()
}

fn resample_any<T: Copy>(
    values: &[T],
    [columns, channels]: [usize; 2],
    [to_columns, to_rows]: [usize; 2],
    filter: Filter,
) -> Vec<f32>
where
    f32: From<T>,
{
    let rows = values.len() / (columns * channels);
    let weights = filter.weights(columns, to_columns);
    let line = to_columns * channels;
    let mut wide = vec![0.0; rows * line];
    for (to, from) in wide.chunks_mut(line).zip(values.chunks(columns * channels)) {
        for (sums, (first, weights)) in to.chunks_mut(channels).zip(&weights) {
            for (at, weight) in weights.iter().enumerate() {
                let source = &from[(first + at) * channels..][..channels];
                sums.iter_mut().zip(source).for_each(|(sum, value)| *sum += weight * f32::from(*value));
            }
        }
    }
    let mut resampled = vec![0.0; to_rows * line];
    for (sums, (first, weights)) in resampled.chunks_mut(line).zip(filter.weights(rows, to_rows)) {
        for (at, weight) in weights.iter().enumerate() {
            let source = &wide[(first + at) * line..][..line];
            sums.iter_mut().zip(source).for_each(|(sum, value)| *sum += weight * value);
        }
    }
    resampled
}

/// The pixels of a window of `size` columns and rows, whose first pixel is at column `start[0]` and row `start[1]` of a
/// picture of `line` columns and channels. Pixels outside the picture are 0. `mirrored` exchanges left and right.
pub fn window(
    pixels: &[u8],
    line @ [columns, channels]: [usize; 2],
    start: [isize; 2],
    size: [usize; 2],
    mirrored: bool,
) -> Vec<u8> {
    let mut window = vec![0; size[0] * size[1] * channels];
    let first = start[0].max(0) as usize;
    let end = columns.min(size[0].saturating_add_signed(start[0]));
    if first >= end {
        return window;
    }
    let at = start[0].min(0).unsigned_abs() * channels;
    let lines = pixels.chunks_exact(line.iter().product());
    let above = start[1].min(0).unsigned_abs();
    let rows = window.chunks_exact_mut(size[0] * channels).skip(above);
    for (to, from) in rows.zip(lines.skip(start[1].max(0) as usize)) {
        let from = &from[first * channels..end * channels];
        to[at..at + from.len()].copy_from_slice(from);
        if mirrored {
            to.reverse();
            to.chunks_exact_mut(channels).for_each(<[u8]>::reverse);
        }
    }
    window
}

/// Sums of the values of each channel, and of their squares.
pub fn channel_sums(pixels: &[u8], channels: usize) -> [Vec<u64>; 2] {
    let mut sums = [vec![0; channels], vec![0; channels]];
    for pixel in pixels.chunks_exact(channels) {
        for (channel, value) in pixel.iter().enumerate() {
            sums[0][channel] += u64::from(*value);
            sums[1][channel] += u64::from(*value).pow(2);
        }
    }
    sums
}

/// Appends `[channels, rows, columns]`, in which each value of a channel is replaced by that of the channel's table.
pub fn push_planes(pixels: &[u8], tables: &[[f32; 256]], to: &mut Vec<f32>) {
    for (channel, table) in tables.iter().enumerate() {
        let values = pixels.iter().skip(channel).step_by(tables.len());
        to.extend(values.map(|value| table[usize::from(*value)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_cut_moved_and_mirrored() {
        // Two columns and two rows of two channels.
        let pixels: Vec<u8> = (1..=8).collect();
        let window = |start, size, mirrored| window(&pixels, [2, 2], start, size, mirrored);
        assert_eq!(window([0, 0], [2, 2], false), pixels);
        assert_eq!(window([1, 1], [1, 1], false), [7, 8]);
        assert_eq!(window([1, 0], [2, 1], true), [0, 0, 3, 4]);
        assert_eq!(window([-1, -1], [3, 2], false), [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(window([0, 0], [2, 1], true), [3, 4, 1, 2]);
        for outside in [[2, 0], [-3, 0], [0, 2], [0, -1], [isize::MIN, isize::MAX]] {
            assert_eq!(window(outside, [2, 1], false), [0; 4], "{outside:?}");
        }
    }

    #[test]
    fn channels_are_summed_and_separated() {
        let pixels = [1, 10, 2, 20, 255, 30];
        assert_eq!(channel_sums(&pixels, 2), [vec![258, 60], vec![65_030, 1_400]]);
        let mut planes = vec![7.0];
        let tables =
            [std::array::from_fn(|value| value as f32), std::array::from_fn(|value| -(value as f32))];
        push_planes(&pixels, &tables, &mut planes);
        assert_eq!(planes, [7.0, 1.0, 2.0, 255.0, -10.0, -20.0, -30.0]);
    }
}
