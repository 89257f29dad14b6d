//! Resampling of pictures and other values in rows.

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

/// Resamples values `[rows, columns, channels]` to another number of columns and rows.
pub fn resample<T: Copy>(
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
