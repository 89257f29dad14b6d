//! One round of all collectives, compared with the serial reference.

use crate::reference::{Reference, bytes, data, serial};
use burn_ddp_comm::{ProcessGroup, ReduceOp};

pub const OPS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

/// Inputs of one round of collectives, which every rank has, and the reference's results.
///
/// They are computed once for all ranks that are threads of one process.
pub struct Case<T> {
    op: ReduceOp,
    root: usize,
    /// The input of each rank, and their reduction.
    all: Vec<Vec<T>>,
    reduced: Vec<T>,
    /// Inputs with an equal part for each rank, and their reduction.
    wide: Vec<Vec<T>>,
    wide_reduced: Vec<T>,
    /// Inputs of different lengths.
    uneven: Vec<Vec<T>>,
}

impl<T: Reference> Case<T> {
    /// A case for a world of `size` ranks with inputs of `count` elements.
    pub fn new(size: usize, op: ReduceOp, count: usize, seed: u64) -> Self {
        let inputs = |seed: u64, length: &dyn Fn(usize) -> usize| -> Vec<Vec<T>> {
            (0..size).map(|rank| data(seed, rank, length(rank))).collect()
        };
        let (all, wide) = (inputs(seed, &|_| count), inputs(!seed, &|_| count * size));
        let uneven = inputs(seed, &|rank| (count * (rank + 1)) % 5000);
        let (reduced, wide_reduced) = (serial(op, &all), serial(op, &wide));
        Self { op, root: seed as usize % size, all, reduced, wide, wide_reduced, uneven }
    }

    /// Runs every operation once and compares with the reference.
    pub fn check(&self, group: &ProcessGroup) {
        let Self { op, root, all, reduced, wide, wide_reduced, uneven } = self;
        let (op, root, rank, size) = (*op, *root, group.rank(), group.world_size());
        let count = reduced.len();

        let mut buffer = all[rank].clone();
        group.all_reduce(&mut buffer, op).unwrap();
        // Bits, not values: all ranks must equal the serial order exactly.
        assert_eq!(bytes(&buffer), bytes(reduced), "{op:?} of {count} {:?}", T::DTYPE);

        let mut buffer = all[rank].clone();
        group.broadcast(&mut buffer, root).unwrap();
        assert_eq!(buffer, all[root]);

        assert_eq!(group.all_gather(&all[rank]).unwrap(), *all);

        let mut buffer = all[rank].clone();
        group.reduce(&mut buffer, op, root).unwrap();
        let expected = if rank == root { reduced } else { &all[rank] };
        assert_eq!(bytes(&buffer), bytes(expected), "reduce {op:?} of {count} {:?} to {root}", T::DTYPE);

        // Equal parts need a multiple of the world size.
        let mut buffer = wide[rank].clone();
        let part = group.reduce_scatter(&mut buffer, op).unwrap().to_vec();
        let mine = rank * count..(rank + 1) * count;
        assert_eq!(bytes(&part), bytes(&wide_reduced[mine.clone()]), "reduce_scatter {op:?}");
        let mut expected = wide[rank].clone();
        expected[mine.clone()].copy_from_slice(&part);
        assert_eq!(bytes(&buffer), bytes(&expected), "the rest of the buffer stays");

        assert_eq!(group.gather(&all[rank], root).unwrap(), (rank == root).then(|| all.clone()));
        let mut part = vec![T::zeroed(); count];
        let source = if rank == root { &wide[root][..] } else { &[] };
        group.scatter(source, &mut part, root).unwrap();
        assert_eq!(part, wide[root][mine]);

        // Around a ring, even ranks first, so that no two ranks wait for each other.
        if size > 1 {
            let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
            let mut got = vec![T::zeroed(); count];
            if rank % 2 == 0 {
                group.send(&all[rank], next).unwrap();
                group.recv(&mut got, previous).unwrap();
            } else {
                group.recv(&mut got, previous).unwrap();
                group.send(&all[rank], next).unwrap();
            }
            assert_eq!(got, all[previous]);
        }

        assert_eq!(group.all_gather_v(&uneven[rank]).unwrap(), *uneven);
        group.barrier().unwrap();
    }
}
