//! Dropout with 16 random bits and one byte of mask per value.

use crate::{
    elementwise::map,
    parallel::{self, Room},
};
use rand::{Rng, SeedableRng, rngs::ChaCha8Rng};
use std::ops::Range;

/// Key of the ChaCha8 generator (D. J. Bernstein, "ChaCha, a variant of Salsa20", 2008).
pub type Key = [u8; 32];

/// Random choice of the dropped values.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// Of 65536 random numbers, those below it drop a value.
    dropped: u32,
    key: Key,
}

impl Dropout {
    /// Drops each value with probability `prob`, from 0 to 1, rounded to 1/65536.
    pub fn new(prob: f64, key: Key) -> Self {
        Self { dropped: (prob * CHANCES).round() as u32, key }
    }

    /// Factor of the kept values.
    pub fn factor(self) -> f32 {
        (CHANCES / (CHANCES - f64::from(self.dropped))) as f32
    }

    /// Whether each of `len` values of a row is kept. Every row has its own random stream.
    pub(crate) fn row(self, row: usize, len: usize, bytes: &mut Vec<u8>) -> impl Iterator<Item = bool> {
        bytes.resize(2 * len, 0);
        let mut random = ChaCha8Rng::from_seed(self.key);
        random.set_stream(row as u64);
        random.fill_bytes(bytes);
        let (numbers, _) = bytes.as_chunks();
        numbers.iter().map(move |number| u32::from(u16::from_le_bytes(*number)) >= self.dropped)
    }
}

/// Number of different random numbers.
const CHANCES: f64 = 65536.0;

/// Dropout mask of a batch.
#[derive(Clone, Debug)]
pub struct Kept {
    /// One byte per value, 0 or 1.
    mask: Vec<u8>,
    /// Factor of the kept values.
    factor: f32,
}

impl Kept {
    /// Draws the mask for `rows` rows of `len` values.
    ///
    /// Each value is dropped with probability `prob`, from 0 to 1, rounded to 1/65536. Every row has its own
    /// random stream.
    pub fn draw(rows: usize, len: usize, prob: f64, key: Key) -> Self {
        let dropout = Dropout::new(prob, key);
        let one = |bytes: &mut Vec<u8>, row: Range<usize>, mask: Room<u8>| {
            for (kept, mask) in dropout.row(row.start, len, bytes).zip(mask) {
                mask.write(u8::from(kept));
            }
        };
        // SAFETY: the whole mask is written.
        let mask = unsafe { parallel::build([rows, 1], len, Vec::new, one) };
        Self { mask, factor: dropout.factor() }
    }

    /// Zeroes the dropped values and scales the others by `1 / (1 − prob)`.
    ///
    /// # Panics
    /// If there is another number of values than the mask has.
    pub fn scale(&self, values: &[f32]) -> Vec<f32> {
        let factor = self.factor;
        map(values, &self.mask, move |value, kept| if kept == 1 { value * factor } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::same_for_every_number_of_threads;

    #[test]
    fn the_key_determines_the_mask_and_the_mean_is_kept() {
        for prob in [0.25, 0.5, 0.9] {
            let draw = |key| Kept::draw(100, 1000, prob, [key; 32]).scale(&[1.0; 100_000]);
            let drawn = same_for_every_number_of_threads(|| draw(7));
            assert!(drawn != draw(8), "keys must matter");
            assert!(drawn[..1000] != drawn[1000..2000], "rows must differ");

            let kept = drawn.iter().filter(|&&value| value != 0.0).count() as f64 / 1e5;
            // Six standard deviations of the kept share of 100 000 values.
            let slack = 6.0 * (prob * (1.0 - prob) / 1e5).sqrt();
            assert!((kept - (1.0 - prob)).abs() < slack, "{kept} kept of 1 - {prob}");
            let factor = drawn.iter().copied().fold(0.0, f32::max);
            assert!((f64::from(factor) * (1.0 - prob) - 1.0).abs() < 2e-4, "{factor} for {prob}");
        }
    }
}
