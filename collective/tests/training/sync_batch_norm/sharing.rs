//! SyncBatchNorm in a model: uneven batches, padding, gradient checkpointing and the number of collectives.

use super::batches::{apart, numbers, values};
use crate::{
    common::{Kind, options, world},
    support::{device, flat},
};
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData, activation::relu};
use burn_ddp_collective::{
    DistributedDataParallel, FlightRecord, ProcessGroup, StepOptions,
    loader::ShardedBatch,
    sync_batch_norm::{SyncBatchNorm, SyncBatchNormConfig, convert_sync_batch_norm},
};
use std::fs;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norms: Vec<SyncBatchNorm>,
    last: Linear,
}

impl Net {
    /// Constant initial weights.
    fn new(device: &Device) -> Self {
        let linear = |seed: u64, inputs: usize, outputs: usize| {
            let mut linear = LinearConfig::new(inputs, outputs).with_bias(false).init(device);
            let weights = TensorData::new(numbers(seed, inputs * outputs), [inputs, outputs]);
            linear.weight = Param::from_tensor(Tensor::from_data(weights, device));
            linear
        };
        let norm = SyncBatchNormConfig::new(6).init(device);
        Net {
            first: linear(1, 3, 6),
            norms: vec![norm, SyncBatchNormConfig::new(6).init(device)],
            last: linear(2, 6, 2),
        }
    }

    /// The mean over the samples of a loss, `[1]`.
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.norms.iter().fold(self.first.forward(x), |x, norm| relu(norm.forward(x)));
        self.last.forward(x).powf_scalar(2.0).mean()
    }
}

fn samples(device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(numbers(3, 27), [9, 3]), device)
}

fn gradients(grads: &GradientsParams, net: &Net) -> Vec<f64> {
    flat(grads, net).into_iter().map(f64::from).collect()
}

fn statistics(net: &Net) -> Vec<f64> {
    let of = |norm: &SyncBatchNorm| {
        [values(norm.norm.running_mean.value_sync()), values(norm.norm.running_var.value_sync())].concat()
    };
    net.norms.iter().flat_map(of).collect()
}

#[test]
fn uneven_shares_and_padding_train_like_the_whole_batch() {
    let device = device();
    let whole = Net::new(&device);
    let grads = GradientsParams::from_grads(whole.loss(samples(&device)).backward(), &whole);
    let (wanted, wanted_statistics) = (gradients(&grads, &whole), statistics(&whole));
    // The last rank has no samples left and repeats one.
    let (rows, counts) = ([0..2, 2..7, 7..9, 0..1], [2, 5, 2, 0]);
    let results = world(Kind::Thread, 4, options(), |group: ProcessGroup| {
        let options = StepOptions { sync_batch_norm: true, ..StepOptions::default() };
        let model = DistributedDataParallel::with_options(Net::new(&device), &group, options);
        let mut model = model.expect("nothing else in it");
        let item = samples(&device).slice([rows[group.rank()].clone(), 0..3]);
        let batch = ShardedBatch { item, samples: counts[group.rank()], global_samples: 9, last: false };
        let (_, step) = model.backward(batch, Net::loss).expect("average");
        (gradients(step.get().expect("a step"), model.module()), statistics(model.module()))
    });
    for (grads, statistics) in &results {
        assert_eq!((grads, statistics), (&results[0].0, &results[0].1), "the same bits on every rank");
        assert!(apart(grads, &wanted) < 1e-5, "{grads:?}\n{wanted:?}");
        assert!(apart(statistics, &wanted_statistics) < 1e-5, "{statistics:?}\n{wanted_statistics:?}");
    }
}

#[test]
fn one_collective_forward_and_one_backward_even_with_checkpointing() {
    let results = [device(), device().gradient_checkpointing()].map(|device| {
        let folder = tempfile::tempdir().expect("a folder");
        let grads = world(Kind::Thread, 2, options().flight_folder(folder.path()), |group: ProcessGroup| {
            let net = convert_sync_batch_norm(Net::new(&device), &group).expect("nothing else in it");
            let x = samples(&device).slice([4 * group.rank()..4 * group.rank() + 4, 0..3]);
            let grads = GradientsParams::from_grads(net.loss(x).backward(), &net);
            group.barrier().expect("in step");
            group.abort("a failure, so that the calls are written down");
            flat(&grads, &net)
        });
        for rank in 0..2 {
            let text = fs::read(folder.path().join(format!("flight-rank{rank}.json"))).expect("a record");
            let record: FlightRecord = serde_json::from_slice(&text).expect("a record");
            let calls: Vec<&str> = record.calls.iter().map(|call| &*call.call.operation).collect();
            assert_eq!(calls[..5], ["all_gather", "all_gather", "all_reduce", "all_reduce", "barrier"]);
        }
        grads
    });
    assert_eq!(results[0], results[1]);
}

#[test]
fn an_input_without_gradient_needs_no_collective_in_backward() {
    world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let device = device();
        let sync = SyncBatchNormConfig::new(3).init(&device).with_group(&group);
        let x = samples(&device).slice([4 * group.rank()..4 * group.rank() + 4, 0..3]);
        let y = sync.forward(x);
        if group.rank() == 0 {
            let grads = y.sum().backward();
            assert!(sync.norm.gamma.grad(&grads).is_some());
        }
        group.barrier().expect("rank 1 ran no backward");
    });
}
