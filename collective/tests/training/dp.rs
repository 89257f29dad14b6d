//! `Replicas` against the same module on one device: gradients, training, running statistics, small batches and a
//! failing replica.

use crate::support::{by_parameter, device, parameters};
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn::train::{ItemLazy, TrainOutput, TrainStep};
use burn_ddp_collective::{
    Error,
    dp::{DataParallelConfig, DpReduce, ParallelStep, Replicas},
    precision::Precision,
    sync_batch_norm::{SyncBatchNorm, SyncBatchNormConfig},
    train_steps,
};

/// Two layers. The forward pass panics for one input value.
#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: Option<SyncBatchNorm>,
    second: Linear,
    relu: Relu,
}

const BROKEN: f32 = 777.0;

impl Net {
    fn new(norm: bool, device: &Device) -> Self {
        Net {
            first: linear(5, 8, device),
            norm: norm.then(|| SyncBatchNormConfig::new(8).init(device)),
            second: linear(8, 3, device),
            relu: Relu::new(),
        }
    }
}

fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    let mut layer = LinearConfig::new(inputs, outputs).init(device);
    layer.weight = Param::from_tensor(pattern([inputs, outputs], 7, device) * 0.4);
    layer.bias = Some(Param::from_tensor(pattern([outputs], 8, device) * 0.4));
    layer
}

/// Values from -1 to 1. Other tests draw from the device's random generator at the same time.
fn pattern<const D: usize>(shape: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
    let count = shape.iter().product::<usize>() as u64;
    let values = (0..count).map(|i| ((i + 37 * seed) * 1761 % 2000) as f32 / 1000.0 - 1.0);
    Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), shape), device)
}

/// Mean loss.
struct Loss(f32);

impl ItemLazy for Loss {
    fn sync(self) -> Result<Self, burn::tensor::ExecutionError> {
        Ok(self)
    }
}

type Batch = (Tensor<2>, Tensor<1, Int>);

fn step(replicas: &Replicas<Net>, net: &Net, batch: Batch) -> Result<TrainOutput<Loss>, Error> {
    replicas.step(Precision::F32, net, batch, || None)
}

impl ParallelStep for Net {
    type Outputs = Tensor<2>;

    fn forward_part(&self, (x, _): Batch) -> Tensor<2> {
        let broken = x.clone().inner().max().into_scalar::<f32>() == BROKEN;
        assert!(!broken, "a broken part of the batch");
        let mut x = self.first.forward(x);
        if let Some(norm) = &self.norm {
            x = norm.forward(x);
        }
        self.second.forward(self.relu.forward(x))
    }

    fn criterion(&self, outputs: Tensor<2>, (_, labels): Batch) -> (Tensor<1>, Loss) {
        let chosen = burn::tensor::activation::log_softmax(outputs, 1).gather(1, labels.unsqueeze_dim(1));
        // The criterion also uses the last layer's parameters.
        let decay = self.second.weight.val().powi_scalar(2).sum().mul_scalar(0.01);
        let loss = chosen.mean().neg() + decay;
        (loss.clone(), Loss(loss.into_scalar::<f32>()))
    }
}

train_steps!(Net: Batch => Loss);

fn cpus(count: usize, output: usize, reduce: DpReduce) -> DataParallelConfig {
    let devices = (0..count).map(|i| (Device::flex(), format!("cpu:{i}"))).collect();
    DataParallelConfig { devices, output, reduce, sites: Vec::new(), threads: 1, sync_batch_norm: false }
}

fn batch(samples: usize, seed: u64) -> Batch {
    let device = device();
    let x = pattern([samples, 5], seed, &device);
    let labels: Vec<i32> = (0..samples).map(|i| (i % 3) as i32).collect();
    (x, Tensor::from_data(&labels[..], &device))
}

/// The gradients of all parameters, in field order.
fn gradients(net: &Net, grads: &GradientsParams) -> Vec<f32> {
    let all = by_parameter(grads, net).into_iter();
    all.flat_map(|grad| grad.expect("a gradient for every parameter")).collect()
}

fn assert_close(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 1e-6 + 1e-5 * b.abs(), "{what}: {a} is not {b}");
    }
}

#[test]
fn gradients_equal_those_of_the_whole_batch_on_one_device() {
    let net = Net::new(false, &device());
    for (replicas, samples, reduce) in [
        (1, 6, DpReduce::Main),
        (2, 8, DpReduce::Main),
        (3, 7, DpReduce::Main),
        (3, 7, DpReduce::Tree),
        (5, 9, DpReduce::Tree),
        // Fewer samples than devices.
        (4, 2, DpReduce::Tree),
        (3, 1, DpReduce::Main),
        (1, 3, DpReduce::AllReduce),
        (2, 8, DpReduce::AllReduce),
        (5, 9, DpReduce::AllReduce),
        (4, 2, DpReduce::AllReduce),
    ] {
        let what = format!("{samples} samples on {replicas} replicas, {reduce:?}");
        let dp = Replicas::new(&net, &cpus(replicas, replicas - 1, reduce)).unwrap();
        let alone = TrainStep::step(&net, batch(samples, 3));
        let together = step(&dp, &net, batch(samples, 3)).unwrap();
        assert!((alone.item.0 - together.item.0).abs() < 1e-5, "{what}");
        assert_close(&gradients(&net, &together.grads), &gradients(&net, &alone.grads), &what);
    }
}

#[test]
fn training_follows_the_single_device() {
    let train = |replicas: usize, reduce| {
        let mut net = Net::new(false, &device());
        let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
        let dp = Replicas::new(&net, &cpus(replicas, 0, reduce)).unwrap();
        for number in 0..20 {
            let output = step(&dp, &net, batch(4 + number % 5, number as u64)).unwrap();
            net = optimizer.step(0.1, net, output.grads);
        }
        parameters(&net)
    };
    let single = train(1, DpReduce::Main);
    assert_close(&train(2, DpReduce::Main), &single, "2 replicas");
    assert_close(&train(3, DpReduce::Main), &single, "3 replicas");
    assert_close(&train(3, DpReduce::AllReduce), &single, "3 replicas, all-reduce");
}

#[test]
fn running_statistics_follow_the_main_devices_samples() {
    let (net, alone) = (Net::new(true, &device()), Net::new(true, &device()));
    let dp = Replicas::new(&net, &cpus(2, 0, DpReduce::Main)).unwrap();
    for seed in 0..5 {
        let (x, labels) = batch(8, seed);
        step(&dp, &net, (x.clone(), labels.clone())).unwrap();
        alone.forward_part((x.narrow(0, 0, 4), labels.narrow(0, 0, 4)));
    }
    assert_close(&mean(net), &mean(alone), "running mean");
}

fn mean(net: Net) -> Vec<f32> {
    let norm = net.valid().norm.expect("a net with BatchNorm");
    norm.norm.running_mean.value().into_data().try_to_vec::<f32>().unwrap()
}

/// Includes batches with fewer samples than devices.
#[test]
fn sync_batch_norm_equals_batch_norm_over_the_whole_batch() {
    let (net, alone) = (Net::new(true, &device()), Net::new(true, &device()));
    let config = DataParallelConfig { sync_batch_norm: true, ..cpus(3, 0, DpReduce::Main) };
    let dp = Replicas::new(&net, &config).unwrap();
    for samples in [8, 7, 2, 9] {
        let together = step(&dp, &net, batch(samples, samples as u64)).unwrap();
        let own = TrainStep::step(&alone, batch(samples, samples as u64));
        let (a, b) = (gradients(&net, &together.grads), gradients(&alone, &own.grads));
        // Absolute tolerance, because the rounding of cancelling sums is large relative to the result.
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{samples}: {a:?} {b:?}");
    }
    assert_close(&mean(net), &mean(alone), "running mean");
}

#[test]
fn a_failing_replica_is_named() {
    let net = Net::new(false, &device());
    let cases = [(0, "cpu:0"), (2, "cpu:1"), (5, "cpu:2")];
    let ways = [DpReduce::Main, DpReduce::AllReduce];
    for ((row, name), reduce) in cases.into_iter().flat_map(|case| ways.map(|way| (case, way))) {
        let (x, labels) = batch(6, 1);
        let x = x.slice_assign([row..row + 1, 0..1], Tensor::full([1, 1], BROKEN, &device()));
        let dp = Replicas::new(&net, &cpus(3, 0, reduce)).unwrap();
        let error = step(&dp, &net, (x, labels)).map(|output| output.item.0).unwrap_err();
        let broken = Error::Device { device: name.into(), reason: "a broken part of the batch".into() };
        assert_eq!(error, broken);
        let later = step(&dp, &net, batch(6, 1)).map(|output| output.item.0).unwrap_err();
        assert_eq!(later.cause(), &broken);
    }
}

#[test]
fn an_unknown_output_device_is_rejected() {
    let net = Net::new(false, &device());
    let error = Replicas::new(&net, &cpus(2, 2, DpReduce::Main)).map(drop).unwrap_err().to_string();
    assert!(error.contains("number 2") && error.contains("2 devices"), "{error}");
    assert!(Replicas::new(&net, &cpus(0, 0, DpReduce::Main)).is_err());
}
