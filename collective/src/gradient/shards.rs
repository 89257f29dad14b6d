//! Which rank updates which parameter if the optimizer's state is divided over the ranks.

/// The owner of each parameter.
///
/// Whole parameters have owners, so that every optimizer works on a shard as on a whole model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shards {
    /// This rank.
    pub rank: usize,
    /// The rank that updates each parameter, by slot.
    pub owners: Vec<usize>,
    /// Number of elements that each rank updates.
    pub sizes: Vec<usize>,
}

impl Shards {
    /// Divides parameters of these numbers of elements over `ranks` ranks: the largest first, each to the rank that has
    /// the fewest elements so far (Graham 1969, "Bounds on Multiprocessing Timing Anomalies").
    pub fn new(lengths: &[usize], rank: usize, ranks: usize) -> Self {
        let mut largest_first: Vec<usize> = (0..lengths.len()).collect();
        largest_first.sort_by_key(|slot| std::cmp::Reverse(lengths[*slot]));
        let (mut owners, mut sizes) = (vec![0; lengths.len()], vec![0; ranks]);
        for slot in largest_first {
            let least = (0..ranks).min_by_key(|rank| sizes[*rank]).unwrap_or(0);
            owners[slot] = least;
            sizes[least] += lengths[slot];
        }
        Self { rank, owners, sizes }
    }

    /// Whether this rank updates a parameter.
    pub fn is_own(&self, slot: usize) -> bool {
        self.owners[slot] == self.rank
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_parameters_are_divided_first() {
        let shards = Shards::new(&[3, 50, 10, 30, 10], 1, 2);
        assert_eq!(shards.owners, [0, 0, 1, 1, 1]);
        assert_eq!(shards.sizes, [53, 50]);
        assert!(shards.is_own(2) && !shards.is_own(1));
    }

    #[test]
    fn a_rank_may_own_nothing() {
        assert_eq!(Shards::new(&[5, 5], 0, 3).sizes, [5, 5, 0]);
        assert_eq!(Shards::new(&[], 0, 2).sizes, [0, 0]);
    }
}
