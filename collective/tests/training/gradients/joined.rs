//! Ranks with different amounts of data.

use crate::common::{Kind, options, world};
use burn::data::{
    dataloader::{DataLoader, DataLoaderIterator, Progress},
    dataset::DatasetError,
};
use burn::tensor::Device;
use burn_ddp_collective::{
    ProcessGroup,
    join::{JoinedLoader, join},
    loader::DistributedLoader,
};
use std::sync::Arc;

/// Batches of a rank: rank 0 has five, rank 1 two, rank 2 three of uneven sizes.
fn batches(rank: usize) -> Vec<Vec<usize>> {
    let sizes: [&[usize]; 3] = [&[4, 4, 4, 4, 1], &[4, 2], &[1, 3, 2]];
    sizes[rank].iter().map(|size| vec![rank; *size]).collect()
}

#[derive(Clone)]
struct Own(Vec<Vec<usize>>);

struct Running {
    left: std::vec::IntoIter<Vec<usize>>,
}

impl Iterator for Running {
    type Item = Result<Vec<usize>, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.left.next()?;
        assert!(!batch.contains(&13), "batch 13 is cursed");
        Some(Ok(batch))
    }
}

impl DataLoaderIterator<Vec<usize>> for Running {
    fn progress(&self) -> Progress {
        Progress::new(0, 1, None)
    }
}

impl DataLoader<Vec<usize>> for Own {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Vec<usize>> + 'a> {
        Box::new(Running { left: self.0.clone().into_iter() })
    }
    fn num_items(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
    fn to_device(&self, _: &Device) -> Arc<dyn DataLoader<Vec<usize>>> {
        Arc::new(self.clone())
    }
    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<Vec<usize>>> {
        Arc::new(Own(self.0[start..end].to_vec()))
    }
}

#[test]
fn ranks_without_data_yield_padding_and_every_sample_counts_once() {
    let results = world(Kind::Thread, 3, options(), |group: ProcessGroup| {
        let own = batches(group.rank()).into_iter().map(Ok);
        let shares: Vec<_> =
            join(own, Vec::len, group.clone()).map(|share| share.expect("in memory")).collect();
        // All ranks finish in the same step.
        group.barrier().expect("in step");
        shares.into_iter().map(|s| (s.item, s.samples, s.global_samples)).collect::<Vec<_>>()
    });
    for (rank, shares) in results.iter().enumerate() {
        let real: Vec<_> = shares.iter().filter(|s| s.1 > 0).map(|s| s.0.clone()).collect();
        assert_eq!(real, batches(rank));
        assert_eq!(shares.iter().map(|s| s.2).collect::<Vec<_>>(), [9, 9, 6, 4, 1]);
        // Padding is a batch that the model accepts.
        assert!(shares.iter().filter(|s| s.1 == 0).all(|s| s.0 == batches(rank)[0]));
    }
}

#[test]
fn loaders_of_any_length_can_be_joined() {
    let results = world(Kind::Thread, 3, options(), |group: ProcessGroup| {
        let own = batches(group.rank());
        let loader =
            JoinedLoader::new(Arc::new(Own(own.clone())), own.len(), Vec::len, &group).expect("joined");
        assert_eq!((loader.steps(), loader.samples(), loader.num_items()), (5, 29, own.concat().len()));
        let shares = |skip| {
            let shares = loader.epoch(1, skip, &Device::default());
            shares.map(|share| share.expect("in memory").samples).collect::<Vec<_>>()
        };
        (shares(0), shares(3))
    });
    assert_eq!(results[1], (vec![4, 2, 0, 0, 0], vec![0, 0]));
    assert_eq!(results[0], (vec![4, 4, 4, 4, 1], vec![4, 1]));
}

#[test]
fn a_rank_without_batches_and_a_panicking_loader_are_errors() {
    let errors = world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let own = if group.rank() == 0 { batches(0) } else { Vec::new() };
        let last = join(own.into_iter().map(Ok), Vec::len, group.clone()).last().expect("a step");
        let error = last.err().map(|error| error.to_string());
        if error.is_some() {
            group.abort("no data");
        }
        error.unwrap_or_default()
    });
    assert!(errors[1].contains("rank 1 has no batch"), "{errors:?}");

    let loader =
        JoinedLoader::new(Arc::new(Own(vec![vec![1], vec![13]])), 2, Vec::len, &ProcessGroup::solo());
    let loader = loader.expect("joined");
    let results: Vec<_> = loader.epoch(1, 0, &Device::default()).collect();
    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false]);
}
