//! Frozen layers, and parameter groups with their own optimizer and learning rate.

use super::{
    Net, assert_close,
    common::{Kind, options, world},
    epoch, loader, parameters,
};
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{Module, ParamGroup};
use burn::optim::{SgdConfig, decay::WeightDecayConfig};
use burn::tensor::Device;
use burn_ddp_collective::{
    DataParallel, DistributedDataParallel, ParallelModule, StepOptions, World, dp::DataParallelConfig,
    module_state, precision::Precision,
};

/// The network with a frozen first layer.
fn frozen() -> Net {
    let Net { first, norm, last } = Net::new(false);
    Net { first: first.no_grad(), norm, last }
}

/// Two epochs, with weight decay and a lower rate for biases. Returns the trained and all parameters.
fn train(model: &mut ParallelModule<Net>, world: World) -> (Vec<f64>, Vec<f32>) {
    let biases = ParamGroup::from_predicate("bias");
    let decay = SgdConfig::new().with_weight_decay(Some(WeightDecayConfig::new(0.1))).build();
    let mut optimizer = SgdConfig::new().init().with_group(biases.clone(), decay, None);
    let mut rates = ModuleLrScheduler::new(0.1).with_group(biases, 0.01);
    let loader = loader(world, 41, Precision::F32);
    for number in 1..=2 {
        epoch(model, &mut optimizer, &loader, number, || rates.step());
    }
    let trained = parameters(model.module()).into_iter().map(f64::from).collect();
    let entries = module_state::entries(model.module()).expect("read");
    let all = entries.into_iter().flat_map(|entry| entry.data.try_to_vec::<f32>().expect("f32"));
    (trained, all.collect())
}

#[test]
fn frozen_layers_are_kept_and_groups_follow_one_trajectory() {
    let chosen = StepOptions { clip_grad_norm: Some(1.0), ..StepOptions::default() };
    let distributed = |size: usize| {
        let results = world(Kind::Thread, size, options(), |group| {
            let model = DistributedDataParallel::with_options(frozen(), &group, chosen.clone());
            train(&mut model.expect("a model"), group.world())
        });
        assert!(results.iter().all(|result| *result == results[0]), "the same bits on every rank");
        results.into_iter().next().expect("a rank")
    };
    let (single, all) = distributed(1);
    // The first layer has 3 x 8 weights and 8 biases, the last one 8 weights and a bias.
    let initial = parameters(&Net::new(false));
    assert_eq!((single.len(), all.len()), (9, initial.len()));
    assert_eq!(all[..32], initial[..32], "frozen");
    assert!(all[32..].iter().zip(&initial[32..]).all(|(new, old)| new != old), "trained");
    for size in [2, 4] {
        let (trained, all) = distributed(size);
        assert_close(&format!("{size} ranks"), &trained, &single, 1e-6);
        assert_eq!(all[..32], initial[..32]);
    }
    let config = DataParallelConfig::new(&[Device::flex(), Device::flex()]);
    let mut model = DataParallel::with_options(frozen(), config, chosen.clone()).expect("a model");
    let (trained, all) = train(&mut model, World { rank: 0, size: 1 });
    assert_close("two devices", &trained, &single, 1e-6);
    assert_eq!(all[..32], initial[..32]);
}
