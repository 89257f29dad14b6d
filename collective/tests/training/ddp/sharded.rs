//! Training with a sharded optimizer makes the same steps as with a whole one on every rank.

use super::{
    Net,
    common::{self, Kind},
    device, loader, options_with, parameters,
};
use burn::module::{Module, ModuleMapper, Param};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::{Bytes, FloatDType, Tensor};
use burn_ddp_collective::{
    DataParallel, DistributedDataParallel, Error, ParallelModule, ProcessGroup, StepOptions, World,
    dp::DataParallelConfig,
    gradient::{BucketSizes, HalfPrecision, Reducer, ReducerOptions},
    loader::DistributedLoader,
    precision::Precision,
};
use burn_pack::Reader;
use std::{collections::BTreeMap, sync::Arc};

const NORM: bool = true;

fn optimizer() -> ModuleOptimizer {
    AdamWConfig::new().with_weight_decay(0.1).init()
}

/// The options with or without sharding.
fn options(chosen: &StepOptions, shard_optimizer: bool) -> StepOptions {
    let reducer = ReducerOptions { shard_optimizer, ..chosen.reducer.clone() };
    StepOptions { reducer, ..chosen.clone() }
}

fn wrap(net: Net, group: &ProcessGroup, chosen: &StepOptions, shard: bool) -> ParallelModule<Net> {
    DistributedDataParallel::with_options(net, group, options(chosen, shard)).expect("a model").into()
}

/// The bits of all losses of an epoch.
fn epoch(
    model: &mut ParallelModule<Net>,
    optimizer: &mut ModuleOptimizer,
    world: World,
    precision: Precision,
    number: usize,
) -> Vec<u64> {
    let losses = super::epoch(model, optimizer, &loader(world, 100, precision), number, || 0.05);
    losses.iter().map(|loss| loss.mean().expect("the host").to_bits()).collect()
}

/// The bits of losses and parameters after two epochs, equal on all ranks except for losses of accumulated batches.
fn trajectory(kind: Kind, size: usize, chosen: &StepOptions, shard: bool) -> (Vec<u64>, Vec<u32>) {
    let mut ranks = common::world(kind, size, common::options(), |group| {
        let mut model = wrap(Net::new(NORM), &group, chosen, shard);
        let mut optimizer = optimizer();
        let losses = [1, 2]
            .map(|number| epoch(&mut model, &mut optimizer, group.world(), chosen.reducer.precision, number))
            .concat();
        model.synchronize().expect("equal replicas");
        (losses, parameters(model.module()).iter().map(|value| value.to_bits()).collect::<Vec<_>>())
    });
    assert!(ranks.iter().all(|rank| rank.1 == ranks[0].1));
    ranks.remove(0)
}

fn assert_same(what: &str, kind: Kind, size: usize, chosen: &StepOptions) {
    let [whole, sharded] = [false, true].map(|shard| trajectory(kind, size, chosen, shard));
    assert_eq!(sharded, whole, "{what}, {size} ranks");
    assert_ne!(whole.0[0], whole.0[whole.0.len() - 1]);
}

#[test]
fn a_sharded_optimizer_makes_the_same_steps() {
    // More ranks than parameters with the last number.
    for size in [2, 3, 6, 12] {
        assert_same("default", Kind::Thread, size, &StepOptions::default());
    }
    let with = |set: fn(&mut StepOptions)| StepOptions { sync_batch_norm: true, ..options_with(set) };
    for (what, chosen) in [
        ("accumulation", with(|options| options.grad_accum_steps = 3)),
        ("clipping", with(|options| options.clip_grad_norm = Some(0.05))),
        ("small buckets", with(|options| options.reducer.buckets = BucketSizes { first: 16, rest: 40 })),
        ("no overlap", with(|options| options.reducer.overlap = false)),
        ("f16", with(|options| options.reducer.precision = Precision::F16)),
        ("bf16", with(|options| options.reducer.precision = Precision::Bf16)),
        ("a hook", with(|options| options.reducer.hook = Some(Arc::new(HalfPrecision::Bf16)))),
    ] {
        assert_same(what, Kind::Thread, 3, &chosen);
    }
    assert_same("tcp", Kind::Tcp, 2, &with(|options| options.clip_grad_norm = Some(0.05)));
}

/// An overflow in one rank's shard must make all ranks skip the step.
#[test]
fn all_ranks_skip_a_step_that_overflows() {
    let chosen = options_with(|options| options.reducer.precision = Precision::F16);
    let skipped = |shard| {
        common::world(Kind::Thread, 2, common::options(), |group| {
            let mut model = wrap(Net::new(NORM), &group, &chosen, shard);
            let mut optimizer = optimizer();
            let mut skipped = Vec::new();
            for batch in loader(group.world(), 100, Precision::F16).epoch(1, 0, &device()) {
                // Only the gradient of the last bias overflows.
                let loss = |net: &Net, samples| {
                    let bias = net.last.bias.as_ref().expect("a bias").val().cast(FloatDType::F32);
                    Net::loss(net, samples).mul_scalar(1e-3) + bias.mul_scalar(2.0)
                };
                let (_, gradients) = model.backward(batch.expect("in memory"), loss).expect("backward");
                skipped.push(gradients.is_skipped());
                model.step(&mut optimizer, 1e-6, gradients).expect("step");
            }
            (skipped, model.state(), model.synchronize().expect("equal replicas"))
        })
    };
    let [whole, sharded] = [false, true].map(skipped);
    assert_eq!(sharded, whole);
    assert!(whole[0].0.contains(&true) && whole[0].0.contains(&false), "{:?}", whole[0].0);
}

/// Tensors by name, and scalars.
fn contents(record: OptimizerRecord) -> (BTreeMap<String, Vec<u8>>, String) {
    let reader = Reader::from_bytes(record.into_bytes().expect("bytes")).expect("a record");
    let scalars = format!("{:?} {:?}", reader.scalars(), reader.metadata());
    let tensors = reader.into_tensors().expect("tensors").into_iter();
    let tensors = tensors
        .map(|tensor| tensor.into_parts().expect("bytes"))
        .map(|(name, .., bytes)| (name, bytes.to_vec()));
    (tensors.collect(), scalars)
}

#[test]
fn a_checkpoint_is_that_of_a_whole_optimizer() {
    let identities = Net::new(NORM).into_record().into_bytes().expect("bytes").to_vec();
    let chosen = StepOptions::default();
    let ranks = |shard| {
        common::world(Kind::Thread, 3, common::options(), |group| {
            let mut net = Net::new(NORM);
            // Rank 0 has the same identities in both runs; those of the others are random.
            if group.rank() == 0 {
                let record = ModuleRecord::from_bytes(Bytes::from_bytes_vec(identities.clone()));
                net = net.load_record(record.expect("a record"));
            }
            let mut model = wrap(net, &group, &chosen, shard);
            let mut optimizer = optimizer();
            epoch(&mut model, &mut optimizer, group.world(), Precision::F32, 1);
            let state = contents(model.consolidate(&optimizer).expect("a record"));
            (state, optimizer.to_record().len(), model.shard_sizes().to_vec())
        })
    };
    let [whole, sharded] = [false, true].map(ranks);
    assert!(sharded[0].0 == whole[0].0);
    // Two moments of six parameters.
    assert_eq!(whole.iter().map(|rank| rank.1).collect::<Vec<_>>(), [12, 12, 12]);
    assert_eq!(sharded.iter().map(|rank| rank.1).sum::<usize>(), 12);
    assert_eq!(sharded[0].2, [24, 17, 16]);
}

#[test]
fn a_loaded_state_is_divided() {
    let parts = common::world(Kind::Thread, 3, common::options(), |group| {
        let net = Net::new(NORM);
        let mut optimizer = optimizer();
        let loss = net.loss(Tensor::ones([2, 4], &device()));
        let grads = GradientsParams::from_grads(loss.backward(), &net);
        let net = optimizer.step(0.1, net, grads);
        let reducer = ReducerOptions { shard_optimizer: true, ..ReducerOptions::default() };
        let reducer = Reducer::new(&net, &group, reducer).expect("a reducer");
        let whole = contents(optimizer.to_record()).0;
        let part = contents(reducer.keep_shard(optimizer.to_record()).expect("a record")).0;
        assert!(part.iter().all(|(name, bytes)| whole.get(name) == Some(bytes)));
        part.values().map(Vec::len).sum::<usize>()
    });
    // Two moments of 24, 17 and 16 elements.
    assert_eq!(parts, [24 * 8, 17 * 8, 16 * 8]);
}

#[test]
fn what_cannot_be_sharded_is_an_error() {
    let chosen = options(&StepOptions::default(), true);
    let config = DataParallelConfig::new(&[device(), device()]);
    let error = DataParallel::with_options(Net::new(false), config, chosen.clone()).err().expect("an error");
    assert!(error.to_string().contains("shard_optimizer needs a rank per device"), "{error}");
    // Without effect on one rank.
    let alone = DistributedDataParallel::with_options(Net::new(false), &ProcessGroup::solo(), chosen.clone());
    assert!(alone.expect("a model").shard_sizes().is_empty());
    let errors = common::world(Kind::Thread, 2, common::options(), |group| {
        let chosen = options(&StepOptions::default(), group.rank() == 0);
        DistributedDataParallel::with_options(Net::new(false), &group, chosen)
            .err()
            .expect("an error")
            .to_string()
    });
    assert!(errors.iter().all(|error| error.contains("optimizer state")), "{errors:?}");

    struct Half;
    impl ModuleMapper for Half {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|value| value.cast(FloatDType::BF16).detach().require_grad())
        }
    }
    let errors = common::world(Kind::Thread, 2, common::options(), |group| {
        let net = Net::new(false).map(&mut Half);
        DistributedDataParallel::with_options(net, &group, chosen.clone()).err().expect("an error")
    });
    let named = |error: &Error| error.to_string().contains("parameters in f32, not BF16");
    assert!(errors.iter().all(named), "{errors:?}");
}
