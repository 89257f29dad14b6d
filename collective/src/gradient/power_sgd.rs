//! PowerSGD: compression of a gradient matrix to the product of two thin matrices.

use super::hook::{Bucket, CommHook};
use crate::{Error, ProcessGroup, ReduceOp, Result, data::sampler::mix};
use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};
use std::{
    collections::HashMap,
    ops::Range,
    sync::{Mutex, PoisonError},
};

/// Relative length below which a column is rounding error after orthogonalisation.
const EPSILON: f32 = 1e-5;

/// Low-rank compression with error feedback and warm start (Vogels, Karimireddy and Jaggi 2019,
/// arXiv 1905.13727, algorithms 1 and 2).
///
/// A gradient of shape `[n, …]` is a matrix M of n rows. One step of a power iteration gives
/// `P = M Q`, summed over ranks and orthonormalised, then `Q = Mᵀ P`, summed over ranks. The result on every rank is
/// `P Qᵀ`; the difference to the rank's own M is added to the next step (error feedback), which starts from Q.
/// Vectors, and matrices whose size would not be halved, are sent uncompressed, as in PyTorch's `powerSGD_hook`.
/// The state is not part of a checkpoint; one hook serves one model.
#[derive(Debug)]
pub struct PowerSgd {
    rank: usize,
    warm_up: usize,
    /// State by rank, for ranks that are threads, and by bucket.
    kept: Mutex<HashMap<(usize, usize), Kept>>,
}

/// State of one bucket between steps.
#[derive(Debug)]
struct Kept {
    steps: usize,
    error: Vec<f32>,
    matrices: Vec<Matrix>,
    /// Ranges that are sent uncompressed.
    whole: Vec<Range<usize>>,
}

/// One compressed gradient; both factors are stored by column.
#[derive(Debug)]
struct Matrix {
    place: Range<usize>,
    rows: usize,
    columns: usize,
    rank: usize,
    /// `rank` columns of `columns` elements.
    q: Vec<f32>,
    seed: u64,
    /// Number of columns drawn at random so far.
    draws: u64,
}

impl PowerSgd {
    /// Default number of columns; PyTorch's is 1.
    pub const RANK: usize = 4;

    /// Creates a hook whose thin matrices have `rank` columns.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `rank` is 0.
    pub fn new(rank: usize) -> Result<Self> {
        if rank == 0 {
            return Err(Error::Invalid("PowerSGD with rank 0: it must be at least 1".into()));
        }
        Ok(Self { rank, warm_up: 0, kept: Mutex::default() })
    }

    burn_ddp_comm::setters! {
        /// Sends the gradients of the first `steps` steps uncompressed: PyTorch's `start_powerSGD_iter`.
        with_warm_up(steps: usize) => warm_up = steps;
    }

    fn fresh(&self, bucket: &Bucket<'_>) -> Kept {
        let (mut matrices, mut whole) = (Vec::new(), Vec::new());
        for (number, parameter) in bucket.parameters().enumerate() {
            let (length, rows) = (parameter.range.len(), parameter.shape.first().copied().unwrap_or(1));
            let columns = length / rows.max(1);
            let rank = self.rank.min(rows).min(columns);
            if parameter.shape.len() < 2 || 2 * rank * (rows + columns) >= length {
                whole.push(parameter.range);
                continue;
            }
            let seed = mix(bucket.index() as u64, number as u64);
            let q = vec![0.0; rank * columns];
            matrices.push(Matrix { place: parameter.range, rows, columns, rank, q, seed, draws: 0 });
        }
        Kept { steps: 0, error: vec![0.0; bucket.values().len()], matrices, whole }
    }
}

impl CommHook for PowerSgd {
    fn name(&self) -> &str {
        "powersgd"
    }

    fn reduce(&self, bucket: &mut Bucket<'_>, group: &ProcessGroup) -> Result<()> {
        let key = (group.rank(), bucket.index());
        // The lock is released during communication.
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        let mut kept = kept.unwrap_or_else(|| self.fresh(bucket));
        kept.steps += 1;
        if kept.steps <= self.warm_up {
            group.all_reduce(bucket.values_mut(), ReduceOp::Sum)?;
        } else {
            kept.reduce(bucket.values_mut(), group)?;
        }
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(key, kept);
        Ok(())
    }
}

impl Kept {
    fn reduce(&mut self, values: &mut [f32], group: &ProcessGroup) -> Result<()> {
        let kept = self;
        values.iter_mut().zip(&kept.error).for_each(|(value, error)| *value += error);
        kept.error.copy_from_slice(values);

        // One message with everything that is not compressed and every P, one with every Q.
        let mut message: Vec<f32> =
            kept.whole.iter().flat_map(|place| &values[place.clone()]).copied().collect();
        kept.matrices.iter_mut().for_each(|matrix| matrix.push_p(values, &mut message));
        group.all_reduce(&mut message, ReduceOp::Sum)?;
        let mut rest = &mut message[..];
        for place in &kept.whole {
            let (mine, others) = rest.split_at_mut(place.len());
            values[place.clone()].copy_from_slice(mine);
            rest = others;
        }
        let (ps, mut qs) = (rest, Vec::new());
        let mut start = 0;
        for matrix in &kept.matrices {
            let p = &mut ps[start..start + matrix.rank * matrix.rows];
            orthonormalise(p, matrix.rows);
            matrix.push_q(values, p, &mut qs);
            start += p.len();
        }
        group.all_reduce(&mut qs, ReduceOp::Sum)?;
        let (mut ps, mut qs) = (&ps[..], &qs[..]);
        for matrix in &mut kept.matrices {
            let (p, q);
            (p, ps) = ps.split_at(matrix.rank * matrix.rows);
            (q, qs) = qs.split_at(matrix.rank * matrix.columns);
            matrix.q.copy_from_slice(q);
            matrix.put_product(p, values);
        }
        let share = 1.0 / group.world_size() as f32;
        kept.error.iter_mut().zip(values).for_each(|(error, value)| *error -= *value * share);
        kept.whole.iter().for_each(|place| kept.error[place.clone()].fill(0.0));
        // A NaN gradient must not stay in the error feedback.
        if kept.error.iter().any(|error| !error.is_finite()) {
            kept.error.fill(0.0);
        }
        Ok(())
    }
}

impl Matrix {
    /// Appends this rank's `M Q`, after making Q orthonormal.
    fn push_p(&mut self, values: &[f32], message: &mut Vec<f32>) {
        // Needed at the start, after a gradient of lower rank, and after a NaN. Q and its replacement have the
        // same bits on all ranks.
        for q in self.q.chunks_exact_mut(self.columns) {
            let norm = dot(q, q);
            if norm == 0.0 || !norm.is_finite() {
                self.draws += 1;
                let mut random = ChaCha8Rng::seed_from_u64(mix(self.seed, self.draws));
                q.iter_mut().for_each(|x| *x = random.random_range(-1.0..1.0));
            }
        }
        orthonormalise(&mut self.q, self.columns);
        let m = &values[self.place.clone()];
        for q in self.q.chunks_exact(self.columns) {
            message.extend(m.chunks_exact(self.columns).map(|row| dot(row, q)));
        }
    }

    /// Appends this rank's `Mᵀ P`.
    fn push_q(&self, values: &[f32], p: &[f32], message: &mut Vec<f32>) {
        let m = &values[self.place.clone()];
        for p in p.chunks_exact(self.rows) {
            let start = message.len();
            message.resize(start + self.columns, 0.0);
            for (row, factor) in m.chunks_exact(self.columns).zip(p) {
                message[start..].iter_mut().zip(row).for_each(|(to, from)| *to += from * factor);
            }
        }
    }

    /// Replaces M by `P Qᵀ`.
    fn put_product(&self, p: &[f32], values: &mut [f32]) {
        let m = &mut values[self.place.clone()];
        m.fill(0.0);
        for (p, q) in p.chunks_exact(self.rows).zip(self.q.chunks_exact(self.columns)) {
            for (row, factor) in m.chunks_exact_mut(self.columns).zip(p) {
                row.iter_mut().zip(q).for_each(|(to, from)| *to += from * factor);
            }
        }
    }
}

/// Orthonormalises columns of `length` elements in place, by two passes of Gram-Schmidt.
///
/// A column that depends on those before it becomes zero.
fn orthonormalise(columns: &mut [f32], length: usize) {
    let count = columns.len() / length.max(1);
    for current in 0..count {
        let (before, rest) = columns.split_at_mut(current * length);
        let column = &mut rest[..length];
        let whole = dot(column, column).sqrt();
        for _ in 0..2 {
            for other in before.chunks_exact(length) {
                let along = dot(column, other);
                column.iter_mut().zip(other).for_each(|(x, y)| *x -= along * y);
            }
        }
        let left = dot(column, column).sqrt();
        let scale = if left > EPSILON * whole { 1.0 / left } else { 0.0 };
        column.iter_mut().for_each(|x| *x *= scale);
    }
}

/// Dot product in 8 partial sums, which compilers vectorise, in a fixed order.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (mut sums, (a_chunks, b_chunks)) = ([0f32; 8], (a.chunks_exact(8), b.chunks_exact(8)));
    let rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a_chunks.zip(b_chunks) {
        sums.iter_mut().zip(x.iter().zip(y)).for_each(|(sum, (x, y))| *sum += x * y);
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_orthonormal() {
        let mut columns: Vec<f32> = (0..33).map(|i| ((i * i * 7 + i * 3) % 31) as f32 - 15.0).collect();
        orthonormalise(&mut columns, 11);
        for (i, a) in columns.chunks(11).enumerate() {
            for (j, b) in columns.chunks(11).enumerate() {
                let wanted = if i == j { 1.0 } else { 0.0 };
                assert!((dot(a, b) - wanted).abs() < 1e-5, "{i} {j}: {}", dot(a, b));
            }
        }
        // A zero column stays zero, and a dependent column becomes zero.
        let mut columns = vec![0.0, 0.0, 0.0, 1.0, 2.0, 3.0, -3.0, -6.0, -9.0];
        orthonormalise(&mut columns, 3);
        assert_eq!((&columns[..3], &columns[6..]), (&[0.0; 3][..], &[0.0; 3][..]));
    }

    #[test]
    fn rank_zero_is_refused() {
        assert!(PowerSgd::new(0).is_err());
    }
}
