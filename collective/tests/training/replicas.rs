//! Replicas on several ranks: broadcast, digests and detection of differences.

use crate::{common, support::device};
use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use burn_ddp_collective::{Error, ProcessGroup, module_state};

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

#[test]
fn broadcast_copies_parameters_and_buffers_to_all_ranks() {
    let digests = common::world(common::Kind::Thread, 3, common::options(), |group: ProcessGroup| {
        let device = device();
        let net = Net::new(4, &device);
        // Different weights and running statistics on every rank.
        let x = Tensor::<2>::random([6, 8], Distribution::Default, &device) + group.rank() as f32;
        let _ = net.norm.forward(x);
        let before = module_state::digest(&net).expect("read");
        let net = module_state::broadcast(net, &group, 1).expect("broadcast");
        let after = module_state::verify_equal(&net, &group, "after the broadcast").expect("equal");
        // Parameters are still trainable.
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
        module_state::broadcast(net, &group, 0).expect_err("different").to_string()
    });
    for error in errors {
        assert!(error.contains("first.weight") && error.contains("rank 1"), "{error}");
        let shapes = [
            "`first.weight [4, 8] F32, trainable` on rank 0",
            "`first.weight [5, 8] F32, trainable` on rank 1",
        ];
        assert!(shapes.iter().all(|shape| error.contains(shape)), "{error}");
    }
}

#[test]
fn a_diverged_replica_is_named() {
    let errors = common::world(common::Kind::Thread, 3, common::options(), |group: ProcessGroup| {
        let net = module_state::broadcast(Net::new(4, &device()), &group, 0).expect("broadcast");
        let mut data: Vec<TensorData> =
            module_state::entries(&net).expect("read").into_iter().map(|e| e.data).collect();
        if group.rank() == 2 {
            data[0] = TensorData::zeros::<f32, _>(data[0].shape().clone());
        }
        let net = module_state::overwrite(net, data);
        module_state::verify_equal(&net, &group, "after step 7").expect_err("drifted")
    });
    for error in errors {
        assert!(matches!(&error, Error::Diverged { ranks, .. } if *ranks == [2]), "{error}");
        assert!(error.to_string().contains("after step 7"));
    }
}
