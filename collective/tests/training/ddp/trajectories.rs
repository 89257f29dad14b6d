//! The same trajectory on one device, on replicas and on ranks, with uneven batches.

use super::{
    Net, assert_close,
    common::{Kind, options, world},
    device, loader, optimizer, options_with, parameters, train,
};
use burn::optim::GradientsParams;
use burn::tensor::Device;
use burn_ddp_collective::{
    DataParallel, DistributedDataParallel, ProcessGroup, StepOptions, World,
    dp::{DataParallelConfig, DpReduce},
    loader::DistributedLoader,
    precision::Precision,
};

/// 3 full global batches of 12 and one of 5: with 4 ranks one has two samples and the others one.
const COUNT: usize = 41;

type Trajectory = (Vec<f64>, Vec<f32>);

fn distributed(size: usize, norm: bool, chosen: &StepOptions) -> Trajectory {
    let results = world(Kind::Thread, size, options(), |group: ProcessGroup| {
        let model = DistributedDataParallel::with_options(Net::new(norm), &group, chosen.clone());
        train(&mut model.expect("a model"), group.world(), COUNT, chosen.reducer.precision)
    });
    assert!(results.iter().all(|result| *result == results[0]), "the same bits on every rank");
    results.into_iter().next().expect("a rank")
}

fn replicas(count: usize, norm: bool, chosen: &StepOptions, reduce: DpReduce) -> Trajectory {
    let config = DataParallelConfig { reduce, ..DataParallelConfig::new(&vec![Device::flex(); count]) };
    let mut model = DataParallel::with_options(Net::new(norm), config, chosen.clone()).expect("a model");
    train(&mut model, World { rank: 0, size: 1 }, COUNT, chosen.reducer.precision)
}

fn assert_one_trajectory(what: &str, norm: bool, chosen: &StepOptions, tolerance: f64) -> Trajectory {
    let single = distributed(1, norm, chosen);
    let compare = |name: String, (losses, parameters): Trajectory| {
        let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
        assert_close(&format!("{what}: losses of {name}"), &losses, &single.0, tolerance);
        assert_close(&format!("{what}: {name}"), &wide(&parameters), &wide(&single.1), tolerance);
    };
    for size in [2, 4] {
        compare(format!("{size} ranks"), distributed(size, norm, chosen));
    }
    for (count, reduce) in [(2, DpReduce::Main), (3, DpReduce::Tree), (2, DpReduce::AllReduce)] {
        compare(format!("{count} replicas, {reduce:?}"), replicas(count, norm, chosen, reduce));
    }
    single
}

#[test]
fn a_single_device_equals_a_plain_loop_to_the_bit() {
    let (losses, trained) = distributed(1, false, &StepOptions::default());
    let (mut net, mut optimizer, mut wanted) = (Net::new(false), optimizer(), Vec::new());
    for epoch in 1..=2 {
        let alone = World { rank: 0, size: 1 };
        for batch in loader(alone, COUNT, Precision::F32).epoch(epoch, 0, &device()) {
            let loss = net.loss(batch.expect("in memory").item);
            wanted.push(f64::from(loss.clone().into_scalar::<f32>()));
            let grads = GradientsParams::from_grads(loss.backward(), &net);
            net = optimizer.step(0.1, net, grads);
        }
    }
    assert_eq!(trained, parameters(&net));
    assert_close("losses", &losses, &wanted, 1e-6);
    assert_eq!(replicas(1, false, &StepOptions::default(), DpReduce::Main).1, trained);
}

#[test]
fn ranks_and_replicas_follow_the_single_device() {
    let (losses, _) = assert_one_trajectory("plain", false, &StepOptions::default(), 1e-5);
    assert_eq!(losses.len(), 8);
    assert!(losses[7] < losses[0] / 2.0, "it learns: {losses:?}");
}

#[test]
fn accumulated_batches_are_one_step_and_the_last_step_may_have_fewer() {
    let chosen = StepOptions { grad_accum_steps: 3, ..StepOptions::default() };
    let (losses, _) = assert_one_trajectory("accumulated", false, &chosen, 1e-5);
    assert_eq!(losses.len(), 4, "of 3 and 1 batches in each epoch");
}

#[test]
fn gradients_are_clipped_together() {
    let chosen = StepOptions { clip_grad_norm: Some(0.05), ..StepOptions::default() };
    let (_, clipped) = assert_one_trajectory("clipped", false, &chosen, 1e-5);
    assert_ne!(clipped, distributed(1, false, &StepOptions::default()).1);
}

#[test]
fn batch_norm_over_shards_equals_batch_norm_over_the_whole_batch() {
    let chosen = StepOptions { sync_batch_norm: true, grad_accum_steps: 2, ..StepOptions::default() };
    assert_one_trajectory("SyncBatchNorm", true, &chosen, 2e-5);
}

#[test]
fn mixed_precision_follows_f32() {
    let (wanted, _) = distributed(1, false, &StepOptions::default());
    for precision in [Precision::Bf16, Precision::F16] {
        let chosen = options_with(|options| options.reducer.precision = precision);
        let (losses, _) = assert_one_trajectory(precision.name(), false, &chosen, 0.03);
        // f16 skips its first steps, whose gradients overflow until the loss scale has decreased.
        let compared = if precision == Precision::F16 { losses.len() - 1.. } else { 0.. };
        assert_close(precision.name(), &losses[compared.clone()], &wanted[compared], 0.03);
    }
}
