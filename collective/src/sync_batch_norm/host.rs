//! Statistics of all ranks' batches for f32 on a CPU.
//!
//! The arithmetic is that of [`kernel`](super::kernel) on plain numbers: Burn's operations on a few channels would take
//! longer than the passes over a small batch.

use super::kernel::{DIGIT, Settings};
use crate::{ReduceOp, Result};
use burn::backend::TensorMetadata;
use kernels::{
    batch_norm::{self, Affine, Centred},
    host_tensor::Host,
};

/// Minimum number of values per channel from which a batch's anchor is computed, if there are as many.
const SAMPLE: usize = 256;

/// Statistics of all ranks' batches, of each channel.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// The mean is `anchor + offset`, because one f32 cannot represent a mean of 1e4 with a deviation of 1e-2
    /// precisely enough.
    pub anchor: Vec<f32>,
    pub offset: Vec<f32>,
    /// 1 / √(variance + ε)
    pub inv_std: Vec<f32>,
    /// Number of values per channel over all ranks, at least 1.
    count: f32,
}

impl Statistics {
    /// Statistics of `values`, `[batch, channels, positions]`, and mean and variance, after one all-gather.
    pub fn of(values: &[f32], shape: [usize; 3], settings: &Settings) -> (Self, [Vec<f32>; 2]) {
        let channels = shape[1];
        let row = match values.is_empty() || settings.weight <= 0.0 {
            true => vec![0.0; 3 * channels + 2],
            false => own(values, shape),
        };
        let len = row.len();
        let rows =
            or_abort(settings, settings.group.all_gather(&row)).unwrap_or_else(|| vec![vec![0.0; len]]);
        let counts: Vec<f32> =
            rows.iter().map(|row| row[3 * channels] * DIGIT as f32 + row[3 * channels + 1]).collect();
        let count = counts.iter().sum::<f32>().max(1.0);
        let mean = |of: &dyn Fn(&[f32]) -> f32| -> f32 {
            rows.iter().zip(&counts).map(|(row, own)| of(row) * (own / count)).sum()
        };
        let [mut anchors, mut offsets, mut inv_std, mut means, mut variances] =
            [(); 5].map(|()| Vec::with_capacity(channels));
        let unbiased = if settings.unbiased { count / (count - 1.0).max(1.0) } else { 1.0 };
        for channel in 0..channels {
            let anchor = mean(&|row| row[channel]);
            // A rank's mean relative to the common anchor.
            let own = |row: &[f32]| row[channel] - anchor + row[channels + channel];
            let offset = mean(&|row| own(row));
            let variance = mean(&|row| {
                let apart = own(row) - offset;
                row[2 * channels + channel] + apart * apart
            });
            anchors.push(anchor);
            offsets.push(offset);
            inv_std.push((variance + settings.epsilon as f32).sqrt().recip());
            means.push(anchor + offset);
            variances.push(variance * unbiased);
        }
        (Self { anchor: anchors, offset: offsets, inv_std, count }, [means, variances])
    }

    /// Sums of the gradient, and along the normalised values, from sums relative to the anchor.
    pub fn gradient_sums(&self, sums: &[[f64; 2]]) -> [Vec<f32>; 2] {
        let constants = self.offset.iter().zip(&self.inv_std);
        let along = sums.iter().zip(constants).map(|([sum, along], (&offset, &inv_std))| {
            ((along - sum * f64::from(offset)) * f64::from(inv_std)) as f32
        });
        let along = along.collect();
        [sums.iter().map(|[sum, _]| *sum as f32).collect(), along]
    }

    /// Each channel's map from the output's gradient and the input relative to the anchor to the input's gradient, from
    /// this rank's [`gradient_sums`](Self::gradient_sums), after one all-reduce.
    pub fn projection(
        &self,
        sums: &[Vec<f32>; 2],
        gamma: &[f32],
        settings: &Settings,
        empty: bool,
    ) -> Vec<Affine> {
        let counts = settings.weight > 0.0 && !empty;
        // Not multiplied by 0, because ignored values may be infinite.
        let weighted = |sum: &f32| if counts { sum * settings.weight as f32 } else { 0.0 };
        let mut all: Vec<f32> = sums.iter().flatten().map(weighted).collect();
        if or_abort(settings, settings.group.all_reduce(&mut all, ReduceOp::Sum)).is_none() {
            all.fill(0.0);
        }
        // Divides by the weight, because the whole gradient is multiplied by it later.
        let factor = if counts { settings.weight.recip() as f32 } else { 0.0 };
        let (means, along) = all.split_at(gamma.len());
        let maps = (0..gamma.len()).map(|channel| {
            let [mean, along] = [means, along].map(|sums| sums[channel] / self.count * factor);
            let scale = gamma[channel] * self.inv_std[channel];
            let slope = -scale * along * self.inv_std[channel];
            Affine { factors: [scale, slope], constant: -scale * mean - slope * self.offset[channel] }
        });
        maps.collect()
    }
}

/// Statistics of this rank's batch that are sent to the other ranks, `[3 × channels + 2]`: anchors, rests of the means,
/// variances, and the number of values in two digits. The batch is read twice.
fn own(values: &[f32], shape: [usize; 3]) -> Vec<f32> {
    let count = shape[0] * shape[2];
    let x = |centres| Centred { values, centres };
    // Means of some images. An anchor is at most √(values per channel / SAMPLE) deviations from the batch's mean, so
    // that differences lose few digits.
    let images = SAMPLE.div_ceil(shape[2]).min(shape[0]);
    let some = batch_norm::sums(x(None), x(None), None, [images, shape[1], shape[2]]);
    let anchor: Vec<f32> = some.iter().map(|[sum, _]| (sum / (images * shape[2]) as f64) as f32).collect();
    let sums = batch_norm::sums(x(Some(&anchor)), x(Some(&anchor)), None, shape);
    let rest = sums.iter().map(|[sum, _]| (sum / count as f64) as f32);
    let variance = sums.iter().map(|[sum, squares]| {
        let rest = sum / count as f64;
        (squares / count as f64 - rest * rest).max(0.0) as f32
    });
    let digits = [(count / DIGIT) as f32, (count % DIGIT) as f32];
    anchor.iter().copied().chain(rest).chain(variance).chain(digits).collect()
}

/// The result; `None` after an error, which ends the group.
fn or_abort<T>(settings: &Settings, result: Result<T>) -> Option<T> {
    result.map_err(|error| settings.group.abort(error.to_string())).ok()
}

/// `[batch, channels, positions]`
pub fn dims(x: &Host) -> [usize; 3] {
    let shape = x.shape();
    [shape[0], shape[1], shape[2..].iter().product()]
}
