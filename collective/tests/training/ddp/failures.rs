//! Errors of the wrappers.

use super::{
    Net,
    common::{Kind, options, world},
    device, filled, loader, optimizer, options_with,
};
use burn::module::Module;
use burn::nn::{BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn_ddp_collective::{
    DataParallel, DistributedDataParallel, Error, ProcessGroup, StepOptions, StepState, World,
    loader::{DistributedLoader, ShardedBatch},
    module_state::{self, Entry},
    precision::Precision,
};
use std::time::{Duration, Instant};

fn first_batch(world: World) -> ShardedBatch<Tensor<2>> {
    loader(world, 24, Precision::F32).epoch(1, 0, &device()).next().expect("a batch").expect("in memory")
}

#[test]
fn rank_0s_parameters_are_copied_to_all_ranks() {
    world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        device().seed(group.rank() as u64);
        let value = |entry: &Entry, i: usize| entry.data.try_to_vec::<f32>().expect("f32")[i];
        let scale = 1.0 + group.rank() as f32;
        let net = filled(BatchNormConfig::new(3).init(&device()), |entry, i| value(entry, i) + scale);
        let mut model = DistributedDataParallel::new(net, &group).expect("a model");
        let gamma = model.module().gamma.val().into_data().try_to_vec::<f32>().expect("f32");
        assert_eq!(gamma, [2.0; 3]);
        let digest = model.synchronize().expect("equal");
        assert_eq!(digest, module_state::digest(model.module()).expect("read"));
    });
}

#[test]
fn different_options_are_an_error_on_every_rank() {
    world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let chosen = StepOptions { grad_accum_steps: 1 + group.rank(), ..StepOptions::default() };
        let error = DistributedDataParallel::with_options(Net::new(false), &group, chosen).map(drop);
        assert!(matches!(error, Err(Error::SettingsDiffer { .. })), "{error:?}");
    });
}

#[test]
fn a_network_without_autodiff_is_an_error() {
    let net = || Net::new(false).valid();
    world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let error = DistributedDataParallel::new(net(), &group).map(drop);
        assert_eq!(error, Err(Error::NotTrainable));
    });
    assert_eq!(DataParallel::new(net(), &[Device::flex()]).map(drop), Err(Error::NotTrainable));
}

#[test]
fn a_clone_of_a_trained_layer_is_an_error() {
    let layer: Linear = LinearConfig::new(2, 2).init(&device());
    let wrapped = |layers| DistributedDataParallel::new(layers, &ProcessGroup::solo()).map(drop);
    let error = wrapped(vec![layer.clone(); 2]).expect_err("one layer twice");
    assert!(error.to_string().contains("parameter 1.weight is a clone of 0.weight"), "{error}");
    // The optimizer would update the frozen layer.
    let frozen = layer.clone().no_grad();
    assert!(wrapped(vec![frozen.clone(), layer.clone()]).is_err());
    assert_eq!(wrapped(vec![layer, frozen.clone(), frozen]), Ok(()));
}

#[test]
fn a_non_finite_loss_names_its_rank_before_the_optimizer_runs() {
    world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let mut model = DistributedDataParallel::new(Net::new(false), &group).expect("a model");
        let factor = if group.rank() == 1 { f32::NAN } else { 1.0 };
        let result = model.backward(first_batch(group.world()), |net, samples| net.loss(samples) * factor);
        let error = result.map(drop).expect_err("NaN");
        assert!(matches!(&error, Error::NonFinite { step: 1, ranks, .. } if ranks == &[1]), "{error}");
    });
}

#[test]
fn state_continues_the_loss_scale_and_the_step() {
    let half = options_with(|options| options.reducer.precision = Precision::F16);
    let chosen = StepOptions { seed: Some(3), ..half };
    let mut model = DistributedDataParallel::with_options(Net::new(false), &ProcessGroup::solo(), chosen)
        .expect("a model");
    assert_eq!(model.state(), StepState { steps: 0, loss_scale: Some((65536.0, 0)) });
    let state = StepState { steps: 7, loss_scale: Some((1024.0, 5)) };
    model.load_state(state);
    let (mut optimizer, alone) = (optimizer(), World { rank: 0, size: 1 });
    let batch = loader(alone, 24, Precision::F16).epoch(1, 0, &device()).next().expect("a batch");
    let (_, gradients) = model.backward(batch.expect("in memory"), Net::loss).expect("backward");
    model.step(&mut optimizer, 0.1, gradients).expect("step");
    assert_eq!(model.state(), StepState { steps: 8, loss_scale: Some((1024.0, 6)) });
}

#[test]
fn a_replica_that_panics_is_named() {
    let mut model = DataParallel::new(Net::new(false), &[Device::flex(), Device::flex()]).expect("a model");
    let batch = first_batch(World { rank: 0, size: 1 });
    let result = model.backward(batch, |net, samples| {
        // The second half of the batch.
        assert!(!std::thread::current().name().is_some_and(|name| name.starts_with("replica")), "broken");
        net.loss(samples)
    });
    let error = result.map(drop).expect_err("a panic");
    assert!(matches!(&error, Error::Device { device, .. } if device.contains("replica 1")), "{error}");
}

#[test]
fn different_numbers_of_batches_are_an_error_that_says_so() {
    for sync_batch_norm in [false, true] {
        let begun = Instant::now();
        let errors = world(Kind::Thread, 2, options(), |group: ProcessGroup| {
            let chosen = StepOptions { sync_batch_norm, ..StepOptions::default() };
            let mut model = DistributedDataParallel::with_options(Net::new(sync_batch_norm), &group, chosen)
                .expect("a model");
            for _ in 0..3 - group.rank() {
                if let Err(error) = model.backward(first_batch(group.world()), Net::loss) {
                    return error;
                }
            }
            group.all_gather(&[group.rank() as f32]).expect_err("rank 0 makes another step")
        });
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        for error in errors {
            let text = error.to_string();
            assert!(matches!(error.cause(), Error::Mismatch { .. }), "{error:?}");
            let group = if sync_batch_norm { "the group of SyncBatchNorm" } else { "the group of gradients" };
            for part in [group, "all_gather #", "different numbers of batches", "ShardedLoader"] {
                assert!(text.contains(part), "should name `{part}`: {text}");
            }
        }
    }
}
