//! Correctness checks of the collectives on tensors.
//!
//! Values are small integers, which every type represents exactly, so that every order of summation gives the
//! same result.

use crate::run::tensor_io::values;
use anyhow::{Result, anyhow};
use burn::module::Module;
use burn::nn::BatchNormConfig;
use burn::tensor::{DType, Device, Distribution, Tensor, TensorData};
use collective::{ProcessGroup, ReduceOp, sync_batch_norm::SyncBatchNorm, tensor};

const ROWS: usize = 12;
const COLUMNS: usize = 7;

fn value(rank: usize, i: usize) -> f32 {
    ((i * 3 + rank * 2) % 5) as f32 - 1.0
}

fn numbers(rank: usize, rows: usize) -> Vec<f32> {
    (0..rows * COLUMNS).map(|i| value(rank, i)).collect()
}

struct Checks<'a> {
    device: &'a Device,
    group: &'a ProcessGroup,
    dtype: DType,
    done: usize,
    wrong: Vec<String>,
}

impl Checks<'_> {
    fn tensor(&self, values: Vec<f32>) -> Tensor<2> {
        let rows = values.len() / COLUMNS;
        Tensor::from_data(TensorData::new(values, [rows, COLUMNS]), (self.device, self.dtype))
    }

    fn expect(&mut self, what: &str, got: Tensor<2>, wanted: &[f32], tolerance: f32) -> Result<()> {
        self.done += 1;
        let got: Vec<f32> = values(got).map_err(|error| anyhow!("{what}: {error}"))?;
        let far = |(got, wanted): (&f32, &f32)| (got - wanted).abs() > tolerance || got.is_nan();
        let wrong = got.iter().zip(wanted).filter(|pair| far(*pair)).count();
        if wrong > 0 || got.len() != wanted.len() {
            let head = |list: &[f32]| format!("{:?}", &list[..list.len().min(4)]);
            self.wrong.push(format!(
                "{what} of {:?}: {wrong} of {} elements, {} instead of {}",
                self.dtype,
                wanted.len(),
                head(&got),
                head(wanted)
            ));
        }
        Ok(())
    }

    fn all(&mut self) -> Result<()> {
        let (group, rank, n) = (self.group, self.group.rank(), self.group.world_size());
        let mine = || numbers(rank, ROWS);
        let ops = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];
        for op in ops {
            let got = tensor::all_reduce(self.tensor(mine()), group, op)?;
            let tolerance = if op == ReduceOp::Mean { 2e-2 } else { 0.0 };
            self.expect(&format!("all_reduce {op:?}"), got, &reduced(op, n, ROWS), tolerance)?;
        }
        let sum = reduced(ReduceOp::Sum, n, ROWS);
        // A tensor that is not contiguous, and one that does not start at the beginning of its memory.
        let turned = tensor::all_reduce(self.tensor(mine()).transpose(), group, ReduceOp::Sum)?;
        self.expect("all_reduce of a transposed tensor", turned.transpose(), &sum, 0.0)?;
        let part = self.tensor(mine()).slice([2..9, 0..COLUMNS]);
        let got = tensor::all_reduce(part, group, ReduceOp::Sum)?;
        self.expect("all_reduce of a slice", got, &sum[2 * COLUMNS..9 * COLUMNS], 0.0)?;
        let columns = self.tensor(mine()).slice([0..ROWS, 1..4]);
        let got = tensor::all_reduce(columns, group, ReduceOp::Sum)?;
        let wanted: Vec<f32> = sum.chunks(COLUMNS).flat_map(|row| row[1..4].to_vec()).collect();
        self.expect("all_reduce of columns", got, &wanted, 0.0)?;
        // Computations directly before and after, without synchronisation in between.
        let lazy = (self.tensor(mine()) * 2.0) + 1.0;
        let got = tensor::all_reduce(lazy, group, ReduceOp::Sum)? * 0.5 - (n as f32 / 2.0);
        self.expect("all_reduce between computations", got, &sum, 0.0)?;
        for root in 0..n {
            let got = tensor::broadcast(self.tensor(mine()), group, root)?;
            self.expect("broadcast", got, &numbers(root, ROWS), 0.0)?;
        }
        let all: Vec<f32> = (0..n).flat_map(|rank| numbers(rank, ROWS)).collect();
        let got = tensor::all_gather(self.tensor(mine()), group)?;
        self.expect("all_gather", got, &all, 0.0)?;
        let all: Vec<f32> = (0..n).flat_map(|rank| numbers(rank, 1 + rank)).collect();
        let got = tensor::all_gather(self.tensor(numbers(rank, 1 + rank)), group)?;
        self.expect("all_gather of different lengths", got, &all, 0.0)?;
        for rows in [2 * n, 2 * n + 1] {
            let got = tensor::reduce_scatter(self.tensor(numbers(rank, rows)), group, ReduceOp::Sum)?;
            let sum = reduced(ReduceOp::Sum, n, rows);
            let share = |rank: usize| rows / n + usize::from(rank < rows % n);
            let from: usize = (0..rank).map(share).sum::<usize>() * COLUMNS;
            self.expect("reduce_scatter", got, &sum[from..from + share(rank) * COLUMNS], 0.0)?;
        }
        Ok(())
    }

    /// Checks the gradient of an all-reduce.
    fn gradient(&mut self) -> Result<()> {
        let (group, rank, n) = (self.group, self.group.rank(), self.group.world_size());
        let device = self.device.clone().autodiff();
        let data = TensorData::new(numbers(rank, ROWS), [ROWS, COLUMNS]);
        let x = Tensor::<2>::from_data(data, &device).require_grad();
        let factor = (rank + 1) as f32;
        let loss = (tensor::all_reduce(x.clone(), group, ReduceOp::Sum)? * factor).sum();
        let Some(grad) = x.grad(&loss.backward()) else { anyhow::bail!("all_reduce gave no gradient") };
        let wanted = (n * (n + 1) / 2) as f32;
        self.expect("the gradient of all_reduce", grad, &[wanted; ROWS * COLUMNS], 0.0)
    }

    /// Checks that SyncBatchNorm over all ranks equals BatchNorm over the whole batch.
    fn batch_norm(&mut self) -> Result<()> {
        let (group, rank, n) = (self.group, self.group.rank(), self.group.world_size());
        let device = self.device.clone().autodiff();
        device.seed(7);
        let whole = Tensor::<2>::random([n * ROWS, COLUMNS], Distribution::Default, &device);
        let whole = tensor::broadcast(whole, group, 0)?;
        let norm = BatchNormConfig::new(COLUMNS).init(&device);
        let wanted = norm.clone().fork(&device).forward(whole.clone());
        let rows = rank * ROWS..(rank + 1) * ROWS;
        let synchronised = SyncBatchNorm::from(norm).with_group(group);
        let got = synchronised.forward(whole.slice([rows.clone(), 0..COLUMNS]));
        let wanted = wanted.slice([rows, 0..COLUMNS]).inner();
        let wanted: Vec<f32> = values(wanted).map_err(|error| anyhow!("SyncBatchNorm: {error}"))?;
        self.expect("SyncBatchNorm", got.inner(), &wanted, 1e-4)
    }
}

fn reduced(op: ReduceOp, ranks: usize, rows: usize) -> Vec<f32> {
    let element = |i: usize| {
        let values = (0..ranks).map(|rank| value(rank, i));
        match op {
            ReduceOp::Sum => values.sum(),
            ReduceOp::Mean => values.sum::<f32>() / ranks as f32,
            ReduceOp::Min => values.fold(f32::INFINITY, f32::min),
            ReduceOp::Max => values.fold(f32::NEG_INFINITY, f32::max),
            ReduceOp::Product => values.product(),
        }
    };
    (0..rows * COLUMNS).map(element).collect()
}

/// Number of checks on this rank, and descriptions of those that failed.
///
/// # Errors
/// If the group or the device fails.
pub fn run(device: &Device, group: &ProcessGroup) -> Result<(usize, Vec<String>)> {
    let mut checks = Checks { device, group, dtype: DType::F32, done: 0, wrong: Vec::new() };
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        if device.supports_dtype(dtype) {
            checks.dtype = dtype;
            checks.all()?;
        }
    }
    checks.dtype = DType::F32;
    checks.gradient()?;
    checks.batch_norm()?;
    Ok((checks.done, checks.wrong))
}
