//! Assignment of samples to ranks, by seed and epoch.
//!
//! The order depends on (seed, epoch) only, not on the world size. Samples are shuffled globally; rank `r`
//! takes `order[r], order[r + world], …`. Global batch `i` therefore holds the same samples at every world
//! size, if batch × world is equal. The epoch is an argument, so that it cannot be forgotten like PyTorch's
//! `set_epoch`.

use crate::World;
use rand::{SeedableRng, rngs::ChaCha8Rng, seq::SliceRandom};
use std::sync::Arc;

/// Assigns `len` samples to the ranks of a world, in a different order each epoch.
#[derive(Clone, Debug)]
pub struct DistributedSampler {
    len: usize,
    world: World,
    seed: Option<u64>,
    /// Sums of the weights of the first samples, if samples are drawn with replacement.
    cumulative: Option<Arc<[f64]>>,
}

impl DistributedSampler {
    /// A sampler of `len` samples. `seed: None` keeps the order of the data set.
    pub fn new(len: usize, world: World, seed: Option<u64>) -> Self {
        Self { len, world, seed, cumulative: None }
    }

    /// Draws samples with replacement, with probabilities proportional to `weights`, in place of a permutation.
    ///
    /// An epoch has as many draws as there are samples, as PyTorch's `WeightedRandomSampler`. It needs a seed.
    /// Weights that are negative or not finite count as 0.
    ///
    /// # Panics
    /// If there is not one weight per sample, or no weight is positive.
    pub fn weighted(self, weights: &[f64]) -> Self {
        assert_eq!(weights.len(), self.len, "one weight per sample");
        let mut sum = 0.0;
        let sums = weights.iter().map(|weight| {
            sum += if weight.is_finite() { weight.max(0.0) } else { 0.0 };
            sum
        });
        let cumulative: Arc<[f64]> = sums.collect();
        assert!(self.len == 0 || sum > 0.0, "no weight is positive");
        Self { cumulative: Some(cumulative), ..self }
    }

    /// Number of samples over all ranks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Seed of the order; `None` for the order of the data set.
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Whether samples are drawn by weights.
    pub fn is_weighted(&self) -> bool {
        self.cumulative.is_some()
    }

    /// The same sampler over the samples `start..end`, numbered from 0 and cut off at the last sample.
    ///
    /// Weights that are all 0 there are ignored.
    pub fn slice(&self, start: usize, end: usize) -> Self {
        let end = end.min(self.len);
        let start = start.min(end);
        let sampler = Self { len: end - start, cumulative: None, ..self.clone() };
        let Some(sums) = &self.cumulative else { return sampler };
        let before = |index: usize| index.checked_sub(1).map_or(0.0, |last| sums[last]);
        let weights: Vec<f64> = (start..end).map(|index| sums[index] - before(index)).collect();
        if weights.iter().any(|weight| *weight > 0.0) { sampler.weighted(&weights) } else { sampler }
    }

    /// Number of steps of an epoch, equal on every rank.
    ///
    /// The last step may be short, or empty on some ranks.
    pub fn steps(&self, batch_size: usize) -> usize {
        self.steps_after(0, batch_size)
    }

    /// Number of steps after the first `done` samples of an epoch.
    pub fn steps_after(&self, done: usize, batch_size: usize) -> usize {
        self.len.saturating_sub(done).div_ceil(batch_size * self.world.size)
    }

    /// Number of samples over all ranks in step `step` after the first `done` samples.
    pub fn global_batch(&self, done: usize, step: usize, batch_size: usize) -> usize {
        let full = batch_size * self.world.size;
        full.min(self.len.saturating_sub(done + step * full))
    }

    /// The global order of `epoch`.
    pub fn order(&self, epoch: usize) -> Vec<usize> {
        if let (Some(seed), Some(sums)) = (self.seed, &self.cumulative) {
            let stream = mix(seed, epoch as u64);
            let total = sums.last().copied().unwrap_or(0.0);
            let draw = |number: usize| {
                // 53 bits, uniform in 0..1.
                let part = (mix(stream, number as u64) >> 11) as f64 / (1_u64 << 53) as f64;
                sums.partition_point(|sum| *sum <= part * total).min(self.len - 1)
            };
            return (0..self.len).map(draw).collect();
        }
        let mut order: Vec<usize> = (0..self.len).collect();
        if let Some(seed) = self.seed {
            order.shuffle(&mut ChaCha8Rng::seed_from_u64(mix(seed, epoch as u64)));
        }
        order
    }

    /// This rank's batches of `epoch`; exactly [`steps`](Self::steps) of them.
    pub fn batches(&self, epoch: usize, batch_size: usize) -> Vec<Vec<usize>> {
        self.batches_after(epoch, 0, batch_size)
    }

    // ANCHOR: batches
    /// This rank's batches after the first `done` samples of the global order of `epoch`.
    ///
    /// The remaining samples are assigned to the ranks of this world, which may differ in size from the world
    /// of the first `done`.
    pub fn batches_after(&self, epoch: usize, done: usize, batch_size: usize) -> Vec<Vec<usize>> {
        let World { rank, size } = self.world;
        let mine: Vec<usize> = self.order(epoch).into_iter().skip(done + rank).step_by(size).collect();
        let mut batches: Vec<Vec<usize>> = mine.chunks(batch_size).map(<[usize]>::to_vec).collect();
        batches.resize(self.steps_after(done, batch_size), Vec::new());
        batches
    }
    // ANCHOR_END: batches
}

/// The number at position `stream` of the SplitMix64 sequence of `seed`.
///
/// Source: Steele, Lea and Flood 2014.
///
/// Derives independent seeds from a seed and an index, for generators of the crate `rand` and for streams
/// that must not change with that crate's version, such as the order of data and dropout.
pub fn mix(seed: u64, stream: u64) -> u64 {
    let mut z = seed.wrapping_add(stream.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sampler(len: usize, rank: usize, size: usize, seed: Option<u64>) -> DistributedSampler {
        DistributedSampler::new(len, World { rank, size }, seed)
    }

    /// Samples of global batch `step`, over all ranks, sorted.
    fn global_batch(len: usize, size: usize, batch: usize, step: usize) -> Vec<usize> {
        let mut all: Vec<usize> =
            (0..size).flat_map(|r| sampler(len, r, size, Some(7)).batches(3, batch)[step].clone()).collect();
        all.sort_unstable();
        all
    }

    proptest! {
        #[test]
        fn every_sample_exactly_once(len in 0usize..500, size in 1usize..9, batch in 1usize..40) {
            let mut seen = vec![0; len];
            for rank in 0..size {
                let s = sampler(len, rank, size, Some(1));
                let batches = s.batches(5, batch);
                prop_assert_eq!(batches.len(), s.steps(batch));
                for i in batches.into_iter().flatten() { seen[i] += 1; }
            }
            prop_assert!(seen.iter().all(|&n| n == 1));
        }

        #[test]
        fn global_batches_do_not_depend_on_the_world(len in 1usize..600, batch in 1usize..10) {
            for step in 0..len.div_ceil(batch * 12) {
                let one = global_batch(len, 1, batch * 12, step);
                for size in [2usize, 3, 4, 6, 12] {
                    prop_assert_eq!(&one, &global_batch(len, size, batch * 12 / size, step));
                }
            }
        }
    }

    proptest! {
        /// An epoch that begins at one world size and ends at another has the same global batches.
        #[test]
        fn a_changed_world_goes_on_in_the_same_order(
            len in 1usize..400, sizes in (1usize..6, 1usize..6), steps in 0usize..9, batch in 1usize..12,
        ) {
            let (before, after) = sizes;
            let done = (steps * batch * before).min(len);
            let order = sampler(len, 0, 1, Some(7)).order(3);
            let mut rest = Vec::new();
            for step in 0..sampler(len, 0, after, Some(7)).steps_after(done, batch) {
                let mut global = Vec::new();
                for rank in 0..after {
                    let s = sampler(len, rank, after, Some(7));
                    global.extend(s.batches_after(3, done, batch)[step].clone());
                    prop_assert_eq!(s.steps_after(done, batch), (len - done).div_ceil(batch * after));
                }
                let from = done + step * batch * after;
                let mut wanted = order[from..(from + batch * after).min(len)].to_vec();
                prop_assert_eq!(global.len(), sampler(len, 0, after, None).global_batch(done, step, batch));
                global.sort_unstable();
                wanted.sort_unstable();
                prop_assert_eq!(&global, &wanted);
                rest.extend(global);
            }
            prop_assert_eq!(rest.len(), len - done);
            if before == after && steps * batch * before <= len {
                let s = sampler(len, before - 1, before, Some(7));
                prop_assert_eq!(s.batches(3, batch).split_off(steps), s.batches_after(3, done, batch));
            }
        }
    }

    #[test]
    fn weighted_samples_are_drawn_by_weight_at_every_world_size() {
        // Sample 0 is not drawn, and the last one three times as often as the others.
        let weights: Vec<f64> =
            (0..1000).map(|i| [0.0, 1.0, 3.0][usize::from(i > 0) + usize::from(i >= 500)]).collect();
        let weighted = |rank, size| sampler(1000, rank, size, Some(7)).weighted(&weights);
        let order = weighted(0, 1).order(2);
        assert_eq!(order.len(), 1000);
        let upper = order.iter().filter(|index| **index >= 500).count();
        assert!((700..800).contains(&upper) && !order.contains(&0), "{upper}");
        assert!(order == weighted(0, 1).order(2) && order != weighted(0, 1).order(3));
        let second = weighted(1, 2).batches(2, 10);
        assert_eq!(second[0], order[1..21].iter().copied().step_by(2).collect::<Vec<_>>());
        let slice = weighted(0, 1).slice(490, 510);
        let upper = slice.order(1).iter().filter(|index| **index >= 10).count();
        assert!(slice.len() == 20 && upper > 10, "{upper}");
        // Without a positive weight, the order is that of a sampler without weights.
        let unweighted = weighted(0, 1).slice(0, 1);
        assert!(!unweighted.is_weighted() && !unweighted.is_empty() && unweighted.seed() == Some(7));
        assert!(weighted(0, 1).slice(500, 500).is_empty());
    }

    #[test]
    fn epochs_and_seeds_differ_and_repeat() {
        let order = |seed, epoch| sampler(1000, 0, 1, seed).order(epoch);
        assert_eq!(order(Some(1), 1), order(Some(1), 1));
        assert_ne!(order(Some(1), 1), order(Some(1), 2));
        assert_ne!(order(Some(1), 2), order(Some(2), 1));
        assert_eq!(order(None, 4), (0..1000).collect::<Vec<_>>());
    }
}
