//! Top-k sparsification: each rank sends only its largest gradient values.

use super::hook::{Bucket, CommHook};
use crate::{Error, ProcessGroup, Result};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Top-k compression with error feedback.
///
/// Of each bucket, every rank sends the fraction `ratio` of values of largest magnitude, with their positions. The
/// other values are added to the next step's gradient (error feedback: Aji and Heafield 2017, arXiv 1704.05021;
/// Stich et al. 2018, arXiv 1809.07599). The state is not part of a checkpoint; one hook serves one model.
///
/// The values of all ranks are gathered, with 8 bytes per value. With n ranks, traffic decreases if `ratio` is well
/// below 1 / n.
#[derive(Debug)]
pub struct TopK {
    ratio: f64,
    /// Values not sent yet, by rank, for ranks that are threads, and by bucket.
    kept: Mutex<HashMap<(usize, usize), Vec<f32>>>,
}

impl TopK {
    /// Default ratio: 1 %.
    pub const RATIO: f64 = 0.01;

    /// Creates a hook that sends the fraction `ratio` of each bucket, at least one value.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `ratio` is not above 0 and at most 1.
    pub fn new(ratio: f64) -> Result<Self> {
        if !(ratio > 0.0 && ratio <= 1.0) {
            return Err(Error::Invalid(format!(
                "top-k with ratio {ratio}: it must be above 0 and at most 1, such as 0.01"
            )));
        }
        Ok(Self { ratio, kept: Mutex::default() })
    }
}

impl CommHook for TopK {
    fn name(&self) -> &str {
        "topk"
    }

    fn reduce(&self, bucket: &mut Bucket<'_>, group: &ProcessGroup) -> Result<()> {
        let length = bucket.values().len();
        if length == 0 {
            return Ok(());
        }
        let key = (group.rank(), bucket.index());
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        let mut kept = kept.unwrap_or_else(|| vec![0.0; length]);
        kept.iter_mut().zip(bucket.values()).for_each(|(to, from)| *to += from);
        let count = ((self.ratio * length as f64).ceil() as usize).clamp(1, length);
        let mut message = Vec::with_capacity(2 * count);
        for position in largest(&kept, count) {
            let value = std::mem::take(&mut kept[position as usize]);
            message.extend([position as i32, value.to_bits() as i32]);
        }
        if kept.iter().any(|value| !value.is_finite()) {
            kept.fill(0.0);
        }
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(key, kept);
        let all = group.all_gather(&message)?;
        let values = bucket.values_mut();
        values.fill(0.0);
        // Rank order gives the same bits on every rank.
        for pair in all.iter().flat_map(|message| message.chunks_exact(2)) {
            values[pair[0] as u32 as usize] += f32::from_bits(pair[1] as u32);
        }
        Ok(())
    }
}

/// Positions of the `count` values of largest magnitude, in ascending order.
fn largest(values: &[f32], count: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    if count < order.len() {
        order.select_nth_unstable_by(count - 1, |a, b| {
            let magnitude = |i: &u32| values[*i as usize].abs();
            magnitude(b).total_cmp(&magnitude(a)).then(a.cmp(b))
        });
        order.truncate(count);
    }
    order.sort_unstable();
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_found_whatever_their_sign() {
        assert_eq!(largest(&[0.1, -3.0, 2.0, 0.0, -2.0], 2), [1, 2]);
        assert_eq!(largest(&[0.1, -3.0, 2.0, 0.0, -2.0], 3), [1, 2, 4]);
        assert_eq!(largest(&[1.0, f32::NAN, 5.0], 1), [1]);
        assert_eq!(largest(&[1.0, 2.0], 2), [0, 1]);
    }

    #[test]
    fn a_ratio_that_sends_nothing_is_refused() {
        for ratio in [0.0, -1.0, 1.01, f64::NAN] {
            assert!(TopK::new(ratio).is_err(), "{ratio}");
        }
    }
}
