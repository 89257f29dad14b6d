//! Replicas on several ranks: broadcast, digests, and gradients averaged over uneven batches.
#![cfg(feature = "burn")]

mod common;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use collective::{
    Error, ProcessGroup,
    gradient::{BucketSizes, GradientBuckets},
    replica,
};

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    norm: BatchNorm,
    last: Linear,
    unused: Linear,
}

impl Net {
    fn new(inputs: usize, device: &Device) -> Self {
        Net {
            first: LinearConfig::new(inputs, 8).init(device),
            norm: BatchNormConfig::new(8).init(device),
            last: LinearConfig::new(8, 1).init(device),
            unused: LinearConfig::new(3, 3).init(device),
        }
    }

    /// Mean over the batch of a loss without BatchNorm's coupling between samples.
    fn loss(&self, x: Tensor<2>) -> Tensor<1> {
        self.last.forward(self.first.forward(x).tanh()).powf_scalar(2.0).mean()
    }
}

fn device() -> Device {
    Device::flex().autodiff()
}

/// All trainable gradients, flat, in field order; zeros where there is none.
struct Flat<'a>(&'a GradientsParams, Vec<f32>);

impl ModuleVisitor for Flat<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            let zeros = vec![0.0; param.lazy_shape().num_elements()];
            let values =
                self.0.get::<D>(param.id).map_or(zeros, |g| g.into_data().try_into_vec().expect("f32"));
            self.1.extend::<Vec<f32>>(values);
        }
    }
}

fn flat(grads: &GradientsParams, net: &Net) -> Vec<f32> {
    let mut flat = Flat(grads, Vec::new());
    net.visit(&mut flat);
    flat.1
}

#[test]
fn broadcast_gives_all_ranks_the_same_parameters_and_buffers() {
    let digests = common::world(common::Kind::Thread, 3, common::options(), |group: ProcessGroup| {
        let device = device();
        let net = Net::new(4, &device);
        // Every rank its own weights and running statistics.
        let x = Tensor::<2>::random([6, 8], Distribution::Default, &device) + group.rank() as f32;
        let _ = net.norm.forward(x);
        let before = replica::digest(&net);
        let net = replica::broadcast(net, &group, 1).expect("broadcast");
        let after = replica::verify_equal(&net, &group, "after the broadcast").expect("equal");
        // Still trainable.
        let x = Tensor::<2>::random([2, 4], Distribution::Default, &device);
        let grads = GradientsParams::from_grads(net.loss(x).backward(), &net);
        assert!(grads.get::<2>(net.first.weight.id).is_some());
        (before, after)
    });
    assert!(digests.iter().all(|(_, after)| *after == digests[1].0));
    assert_ne!(digests[0].0, digests[1].0);
}

#[test]
fn different_models_are_named_on_every_rank() {
    let errors = common::world(common::Kind::Thread, 2, common::options(), |group: ProcessGroup| {
        let net = Net::new(4 + group.rank(), &device());
        replica::broadcast(net, &group, 0).expect_err("different").to_string()
    });
    for error in errors {
        assert!(error.contains("first.weight") && error.contains("rank 1"), "{error}");
    }
}

#[test]
fn a_replica_that_drifted_is_named() {
    let errors = common::world(common::Kind::Thread, 3, common::options(), |group: ProcessGroup| {
        let net = replica::broadcast(Net::new(4, &device()), &group, 0).expect("broadcast");
        let mut data: Vec<TensorData> = replica::entries(&net).into_iter().map(|e| e.data).collect();
        if group.rank() == 2 {
            data[0] = TensorData::zeros::<f32, _>(data[0].shape().clone());
        }
        let net = replica::overwrite(net, data);
        replica::verify_equal(&net, &group, "after step 7").expect_err("drifted")
    });
    for error in errors {
        assert!(matches!(&error, Error::Diverged { ranks, .. } if *ranks == [2]), "{error}");
        assert!(error.to_string().contains("after step 7"));
    }
}

#[test]
fn averaged_gradients_are_those_of_the_global_batch_even_if_ranks_differ_in_size() {
    // 7 samples: 3, 4 and none.
    let shares = [0..3, 3..7, 0..1];
    let weights = [3.0 / 7.0, 4.0 / 7.0, 0.0];
    for sizes in [BucketSizes::default(), BucketSizes { first: 1, rest: 64 }] {
        let results = common::world(common::Kind::Thread, 3, common::options(), |group: ProcessGroup| {
            let device = device();
            let net = replica::broadcast(Net::new(4, &device), &group, 0).expect("broadcast");
            let x: Vec<f32> = (0..28).map(|i| (i as f32 * 0.37).sin()).collect();
            let x = Tensor::<2>::from_data(TensorData::new(x, [7, 4]), &device);
            let whole = GradientsParams::from_grads(net.loss(x.clone()).backward(), &net);
            let wanted = flat(&whole, &net);
            let mine = x.slice([shares[group.rank()].clone(), 0..4]);
            let grads = GradientsParams::from_grads(net.loss(mine).backward(), &net);
            let mut totals = [group.rank() as f32, 1.0];
            let grads = GradientBuckets::new(&net, sizes)
                .average(grads, &net, weights[group.rank()], &mut totals, &group)
                .expect("average");
            assert_eq!(totals, [3.0, 3.0]);
            (flat(&grads, &net), wanted)
        });
        for (ours, wanted) in &results {
            assert_eq!(ours, &results[0].0, "the same bits on every rank");
            let worst = ours.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-6, "{worst}");
        }
    }
}
