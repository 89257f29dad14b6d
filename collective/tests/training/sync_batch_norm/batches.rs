//! Batches that are split into shards, and the results of normalising them.

pub use crate::support::device;

use crate::common::{Kind, options, world};
use burn::module::{Param, RunningState};
use burn::nn::BatchNorm;
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_ddp_collective::{
    ProcessGroup,
    sampler::mix,
    sync_batch_norm::{RunningVariance, SyncBatchNorm, SyncBatchNormConfig},
};
use serde::Deserialize;
use std::ops::Range;

/// One batch and the gradient of its output, row-major.
#[derive(Clone, Debug, Deserialize)]
pub struct Batch {
    pub x: Vec<f64>,
    pub dy: Vec<f64>,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub shape: Vec<usize>,
    /// Number of rows of each rank.
    pub shards: Vec<usize>,
    pub momentum: f64,
    pub eps: f64,
    pub gamma: Vec<f64>,
    pub beta: Vec<f64>,
    pub steps: Vec<Batch>,
    pub dtype: DType,
    pub running_variance: RunningVariance,
}

/// Results of one step, of one rank or of all.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Outcome {
    pub y: Vec<f64>,
    pub dx: Vec<f64>,
    pub dgamma: Vec<f64>,
    pub dbeta: Vec<f64>,
    pub running_mean: Vec<f64>,
    pub running_var: Vec<f64>,
}

/// A layer to test, and the BatchNorm with its parameters and statistics.
pub trait Layer {
    fn norm(&self) -> &BatchNorm;
    fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D>;
}

impl Layer for BatchNorm {
    fn norm(&self) -> &BatchNorm {
        self
    }
    fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        BatchNorm::forward(self, input)
    }
}

impl Layer for SyncBatchNorm {
    fn norm(&self) -> &BatchNorm {
        &self.norm
    }
    fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        SyncBatchNorm::forward(self, input)
    }
}

/// Reproducible numbers from -1 to 1.
pub fn numbers(seed: u64, count: usize) -> Vec<f64> {
    (0..count as u64).map(|i| mix(seed, i) as f64 / u64::MAX as f64 * 2.0 - 1.0).collect()
}

impl Case {
    /// A case of `steps` batches of f64 values around 3.
    pub fn random(seed: u64, shards: &[usize], rest: &[usize], steps: usize) -> Case {
        let shape = [&[shards.iter().sum()], rest].concat();
        let count = shape.iter().product();
        let batch = |step: u64| Batch {
            x: numbers(mix(seed, 2 * step), count).iter().map(|x| 3.0 + 2.0 * x).collect(),
            dy: numbers(mix(seed, 2 * step + 1), count),
        };
        Case {
            gamma: numbers(seed ^ 1, shape[1]).iter().map(|x| 1.0 + 0.5 * x).collect(),
            beta: numbers(seed ^ 2, shape[1]),
            steps: (0..steps as u64).map(batch).collect(),
            shards: shards.to_vec(),
            shape,
            momentum: 0.2,
            eps: 1e-5,
            dtype: DType::F64,
            running_variance: RunningVariance::Population,
        }
    }

    pub fn module(&self, device: &Device) -> SyncBatchNorm {
        let config = SyncBatchNormConfig::new(self.shape[1])
            .with_epsilon(self.eps)
            .with_momentum(self.momentum)
            .with_running_variance(self.running_variance);
        let mut sync = config.init(device);
        let line = |values: &[f64]| tensor::<1>(values, &[values.len()], self.dtype, device);
        sync.norm.gamma = Param::from_tensor(line(&self.gamma));
        sync.norm.beta = Param::from_tensor(line(&self.beta));
        sync.norm.running_mean = RunningState::new(line(&vec![0.0; self.shape[1]]));
        sync.norm.running_var = RunningState::new(line(&vec![1.0; self.shape[1]]));
        sync
    }

    /// All steps of a layer on these rows of every batch.
    pub fn train(&self, layer: &impl Layer, rows: Range<usize>, device: &Device) -> Vec<Outcome> {
        match self.shape.len() {
            2 => self.train_of::<2>(layer, rows, device),
            3 => self.train_of::<3>(layer, rows, device),
            4 => self.train_of::<4>(layer, rows, device),
            5 => self.train_of::<5>(layer, rows, device),
            other => panic!("{other} dimensions"),
        }
    }

    fn train_of<const D: usize>(
        &self,
        layer: &impl Layer,
        rows: Range<usize>,
        device: &Device,
    ) -> Vec<Outcome> {
        let norm = layer.norm();
        let row: usize = self.shape[1..].iter().product();
        let shape = [&[rows.len()], &self.shape[1..]].concat();
        let part = |values: &[f64]| {
            tensor::<D>(&values[rows.start * row..rows.end * row], &shape, self.dtype, device)
        };
        let step = |batch: &Batch| {
            let x = part(&batch.x).require_grad();
            let y = layer.forward(x.clone());
            let grads = (y.clone() * part(&batch.dy)).sum().backward();
            let of = |param: &Param<Tensor<1>>| values(param.grad(&grads).expect("a gradient"));
            Outcome {
                y: values(y),
                dx: values(x.grad(&grads).expect("a gradient")),
                dgamma: of(&norm.gamma),
                dbeta: of(&norm.beta),
                running_mean: values(norm.running_mean.value_sync()),
                running_var: values(norm.running_var.value_sync()),
            }
        };
        self.steps.iter().map(step).collect()
    }

    /// Results of Burn's BatchNorm over the whole batch.
    pub fn whole(&self) -> Vec<Outcome> {
        let device = device();
        let norm: BatchNorm = self.module(&device).into();
        self.train(&SyncBatchNorm::from(norm), 0..self.shape[0], &device)
    }

    /// Results with one rank per shard, summed and concatenated over the ranks.
    ///
    /// Running statistics must be bit-identical on all ranks.
    pub fn sharded(&self, kind: Kind) -> Vec<Outcome> {
        let ranks = world(kind, self.shards.len(), options(), |group: ProcessGroup| {
            let (device, start) = (device(), self.shards[..group.rank()].iter().sum());
            let sync = self.module(&device).with_group(&group);
            self.train(&sync, start..start + self.shards[group.rank()], &device)
        });
        let step = |step: usize| {
            let parts = || ranks.iter().map(|rank| &rank[step]);
            let first = &ranks[0][step];
            for part in parts() {
                assert_eq!(part.running_mean, first.running_mean, "the same bits on every rank");
                assert_eq!(part.running_var, first.running_var, "the same bits on every rank");
            }
            let sum = |of: fn(&Outcome) -> &Vec<f64>| {
                parts().fold(vec![0.0; self.shape[1]], |sum, part| {
                    sum.iter().zip(of(part)).map(|(a, b)| a + b).collect()
                })
            };
            Outcome {
                y: parts().flat_map(|part| part.y.clone()).collect(),
                dx: parts().flat_map(|part| part.dx.clone()).collect(),
                dgamma: sum(|part| &part.dgamma),
                dbeta: sum(|part| &part.dbeta),
                ..first.clone()
            }
        };
        (0..self.steps.len()).map(step).collect()
    }
}

pub fn tensor<const D: usize>(values: &[f64], shape: &[usize], dtype: DType, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape.to_vec()), (device, dtype))
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().try_into_vec().expect("f64")
}

/// The largest difference, relative to the largest value of `wanted`.
pub fn apart(ours: &[f64], wanted: &[f64]) -> f64 {
    apart_on(1e-3, ours, wanted)
}

/// The largest difference, relative to the larger of that value and `scale`.
fn apart_on(scale: f64, ours: &[f64], wanted: &[f64]) -> f64 {
    assert_eq!(ours.len(), wanted.len());
    let largest = |numbers: &mut dyn Iterator<Item = f64>| numbers.fold(0.0, f64::max);
    let difference = ours.iter().zip(wanted).map(|(a, b)| (a - b).abs());
    // `max` ignores NaN.
    assert!(ours.iter().all(|x| x.is_finite()), "{ours:?}");
    largest(&mut difference.into_iter()) / largest(&mut wanted.iter().map(|x| x.abs())).max(scale)
}

impl Case {
    /// Magnitude of the terms whose difference is a step's dx.
    ///
    /// With two values per channel they cancel to 1e-5 of it, so that f32 cannot represent the result to five digits.
    pub fn gradient_scale(&self, step: usize) -> f64 {
        let Batch { x, dy } = &self.steps[step];
        let positions: usize = self.shape[2..].iter().product();
        let of = |values: &[f64], channel: usize| -> Vec<f64> {
            let rows = values.chunks(positions).enumerate();
            rows.filter(|(row, _)| row % self.shape[1] == channel).flat_map(|(_, row)| row.to_vec()).collect()
        };
        let scale = |channel: usize| {
            let x = of(x, channel);
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
            let largest = of(dy, channel).into_iter().map(f64::abs).fold(0.0, f64::max);
            self.gamma[channel].abs() * largest / (variance + self.eps).sqrt()
        };
        (0..self.shape[1]).map(scale).fold(0.0, f64::max)
    }
}

impl Outcome {
    /// Error of each part.
    fn against(&self, wanted: &Outcome, gradient_scale: f64) -> [(&'static str, f64); 6] {
        [
            ("y", apart(&self.y, &wanted.y)),
            ("dx", apart_on(gradient_scale, &self.dx, &wanted.dx)),
            ("dgamma", apart(&self.dgamma, &wanted.dgamma)),
            ("dbeta", apart(&self.dbeta, &wanted.dbeta)),
            ("running_mean", apart(&self.running_mean, &wanted.running_mean)),
            ("running_var", apart(&self.running_var, &wanted.running_var)),
        ]
    }

    /// Fails if the error of any part exceeds `tolerance`; reports all errors.
    pub fn assert_close(&self, wanted: &Outcome, gradient_scale: f64, tolerance: f64, what: &str) {
        let apart = self.against(wanted, gradient_scale);
        println!("{what}: {}", apart.map(|(name, apart)| format!("{name} {apart:.1e}")).join(", "));
        for (name, apart) in apart {
            assert!(apart <= tolerance, "{what}: {name} is off by {apart:.2e}, more than {tolerance:.0e}");
        }
    }
}
