//! `SyncBatchNorm` as a module: conversion of models, records and display.

use crate::{
    common::{Kind, options, world},
    support::device,
};
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Tensor};
use burn_ddp_collective::{
    ProcessGroup, module_state,
    sync_batch_norm::{RunningVariance, SyncBatchNorm, SyncBatchNormConfig, convert_sync_batch_norm},
};

/// Generic over the BatchNorm type only in this test, to compare the two types.
#[derive(Module, Debug)]
struct Net<N: Module> {
    linear: Linear,
    norm: N,
    more: Vec<Option<N>>,
}

type Synchronised = Net<SyncBatchNorm>;
type Plain = Net<burn::nn::BatchNorm>;

fn plain(device: &Device) -> Plain {
    let norm = || burn::nn::BatchNormConfig::new(4).init(device);
    Net { linear: LinearConfig::new(4, 4).init(device), norm: norm(), more: vec![Some(norm()), None] }
}

/// Written as with Burn's own type.
fn synchronised(device: &Device) -> Synchronised {
    use burn_ddp_collective::sync_batch_norm::SyncBatchNormConfig as BatchNormConfig;
    let norm = || BatchNormConfig::new(4).with_momentum(0.1).with_epsilon(1e-5).init(device);
    Net { linear: LinearConfig::new(4, 4).init(device), norm: norm(), more: vec![Some(norm()), None] }
}

fn groups(net: &Synchronised) -> Vec<bool> {
    let all = [Some(&net.norm)].into_iter().chain(net.more.iter().map(Option::as_ref));
    all.flatten().map(|norm| norm.group().is_some()).collect()
}

#[test]
fn every_layer_of_a_model_gets_the_group_and_keeps_it() {
    let device = device();
    let net = synchronised(&device);
    assert_eq!(groups(&net), [false, false]);
    let digest = module_state::digest(&net).expect("read");
    let net = convert_sync_batch_norm(net, &ProcessGroup::solo()).expect("all can be converted");
    assert_eq!(groups(&net), [true, true]);
    assert_eq!(module_state::digest(&net).expect("read"), digest);
    // All operations on a model during training.
    let x = Tensor::<2>::random([3, 4], Distribution::Default, &device);
    let grads = net.norm.forward(net.linear.forward(x)).sum().backward();
    let grads = GradientsParams::from_grads(grads, &net);
    let net = SgdConfig::new().init().step(0.1, net, grads);
    let record = net.clone().into_record();
    let net = net.fork(&device).load_record(record).valid().train().to_device(&device).materialize();
    assert_eq!(groups(&net), [true, true]);
    // A model that is created later has no group.
    assert_eq!(groups(&synchronised(&device).map(&mut Nothing)), [false, false]);
}

struct Nothing;
impl burn::module::ModuleMapper for Nothing {}

#[test]
fn layers_that_cannot_be_converted_are_named() {
    let error = convert_sync_batch_norm(plain(&device()), &ProcessGroup::solo()).expect_err("another type");
    let error = error.to_string();
    assert!(
        error.contains("`norm`, `more.0`: burn::nn::BatchNorm") && error.contains("burn_ddp::nn::BatchNorm"),
        "{error}"
    );
    // A frozen BatchNorm has no batch statistics.
    let mut net = plain(&device());
    net.norm = net.norm.freeze();
    let error = convert_sync_batch_norm(net.clone(), &ProcessGroup::solo()).expect_err("one is trained");
    assert!(error.to_string().starts_with("`more.0`:"), "{error}");
    convert_sync_batch_norm(net.freeze(), &ProcessGroup::solo()).expect("nothing to synchronise");
}

#[derive(Default)]
struct Names(Vec<String>, Vec<String>);

impl ModuleVisitor for Names {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.0.push(format!("{container}:{name}"));
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.0.pop();
    }
    fn visit_float<const D: usize>(&mut self, _: &Param<Tensor<D>>) {
        self.1.push(self.0.join("/"));
    }
}

fn names<M: Module>(module: &M) -> Vec<String> {
    let mut names = Names::default();
    module.visit(&mut names);
    names.1
}

#[test]
fn records_are_interchangeable_with_burns_batch_norm() {
    let device = device();
    let (plain, sync) = (plain(&device), synchronised(&device));
    // Also for importers that depend on a container's type.
    assert_eq!(names(&plain), names(&sync));
    assert_eq!(Module::num_params(&plain), Module::num_params(&sync));
    // Recognisable statistics.
    let x = Tensor::<2>::random([6, 4], Distribution::Normal(2.0, 3.0), &device);
    let _ = plain.norm.forward(x.clone());
    let _ = sync.norm.forward(x * 2.0);
    let (from_plain, from_sync) =
        (module_state::digest(&plain).expect("read"), module_state::digest(&sync).expect("read"));
    assert_ne!(from_plain, from_sync);

    let folder = tempfile::tempdir().expect("a folder");
    let (a, b) = (folder.path().join("plain.bpk"), folder.path().join("sync.bpk"));
    plain.clone().save_file(&a).expect("saved");
    sync.clone().save_file(&b).expect("saved");
    let loaded = sync.try_load_file(&a).expect("BatchNorm's record");
    assert_eq!(module_state::digest(&loaded).expect("read"), from_plain);
    let loaded = plain.try_load_file(&b).expect("SyncBatchNorm's record");
    assert_eq!(module_state::digest(&loaded).expect("read"), from_sync);
}

#[test]
fn synchronised_layers_are_displayed() {
    let texts = world(Kind::Thread, 2, options(), |group: ProcessGroup| {
        let norm = SyncBatchNormConfig::new(3).with_running_variance(RunningVariance::Unbiased);
        let net = norm.init(&device());
        let before = net.to_string();
        (before, convert_sync_batch_norm(net, &group).expect("it is one itself").to_string())
    });
    for (before, after) in texts {
        assert!(
            before.starts_with("SyncBatchNorm {num_features: 3") && before.contains("ranks: 1"),
            "{before}"
        );
        assert!(after.contains("ranks: 2") && after.contains("params: 12"), "{after}");
    }
}
