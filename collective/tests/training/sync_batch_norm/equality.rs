//! Results over any shards and transport equal those of Burn's BatchNorm over the whole batch.

use super::batches::{Case, device};
use crate::common::Kind;
use burn::nn::BatchNorm;
use burn::tensor::DType;
use burn_ddp_collective::{
    ProcessGroup,
    sync_batch_norm::{RunningVariance, SyncBatchNorm},
};
use proptest::{collection::vec, prelude::*};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn shards_of_any_sizes_equal_the_whole_batch(
        seed: u64,
        shards in vec(0usize..5, 2..5).prop_filter("no sample", |shards| shards.iter().sum::<usize>() > 0),
        channels in 1usize..5,
        positions in vec(1usize..4, 0..4),
        unbiased: bool,
    ) {
        let mut case = Case::random(seed, &shards, &[&[channels], &positions[..]].concat(), 2);
        if unbiased {
            case.running_variance = RunningVariance::Unbiased;
        }
        let population = Case { running_variance: RunningVariance::Population, ..case.clone() };
        for (step, (ours, mut wanted)) in case.sharded(Kind::Thread).iter().zip(population.whole()).enumerate() {
            if unbiased {
                wanted.running_var = unbiased_from_population(&case, step);
            }
            ours.assert_close(&wanted, 1e-3, 1e-9, &format!("step {step} of {:?} in {:?}", case.shape, case.shards));
        }
    }
}

/// The unbiased running variance after `step`, from Burn's population variances.
fn unbiased_from_population(case: &Case, step: usize) -> Vec<f64> {
    let count = case.shape.iter().product::<usize>() / case.shape[1];
    let factor = count as f64 / (count.max(2) - 1) as f64;
    (0..=step).fold(vec![1.0; case.shape[1]], |running, step| {
        // With momentum 1 the running variance is that of the batch.
        let only = Case { momentum: 1.0, steps: vec![case.steps[step].clone()], ..case.clone() };
        let batch = Case { running_variance: RunningVariance::Population, ..only }.whole().remove(0);
        let new = batch.running_var.iter().map(|variance| variance * factor);
        running.iter().zip(new).map(|(old, new)| old * (1.0 - case.momentum) + new * case.momentum).collect()
    })
}

#[test]
fn every_transport_gives_the_same_bits() {
    let case = Case { dtype: DType::F32, ..Case::random(5, &[3, 1, 0, 4], &[3, 2, 5], 2) };
    let thread = case.sharded(Kind::Thread);
    for kind in [Kind::Tcp, Kind::Shm, Kind::Hierarchical] {
        assert_eq!(case.sharded(kind), thread, "{kind:?}");
    }
    for (ours, wanted) in thread.iter().zip(case.whole()) {
        ours.assert_close(&wanted, 1e-3, 1e-5, "in f32");
    }
}

/// Bit-identical, except in f32 on a CPU, where the order of sums differs.
#[test]
fn a_world_of_one_equals_burns_batch_norm() {
    for rest in [&[4][..], &[3, 5], &[3, 4, 4], &[2, 3, 2, 3]] {
        for dtype in [DType::F64, DType::F32] {
            let case = Case { dtype, ..Case::random(9, &[6], rest, 3) };
            let device = device();
            let alone = case.train(&case.module(&device), 0..6, &device);
            let solo = case.train(&case.module(&device).with_group(&ProcessGroup::solo()), 0..6, &device);
            // Without any code of this project.
            let burns = case.train(&BatchNorm::from(case.module(&device)), 0..6, &device);
            assert_eq!(solo, alone);
            match dtype {
                DType::F32 => {
                    for (ours, burns) in alone.iter().zip(&burns) {
                        ours.assert_close(burns, 1.0, 1e-5, "in f32");
                    }
                }
                _ => assert_eq!(alone, burns),
            }
        }
    }
}

#[test]
fn on_one_rank_the_unbiased_variance_is_the_only_difference() {
    let case = Case::random(3, &[5], &[2, 3], 1);
    let unbiased = Case { running_variance: RunningVariance::Unbiased, ..case.clone() };
    let device = device();
    let sync: SyncBatchNorm = unbiased.module(&device);
    let (ours, plain) = (unbiased.train(&sync, 0..5, &device).remove(0), case.whole().remove(0));
    assert_eq!((&ours.y, &ours.dx, &ours.running_mean), (&plain.y, &plain.dx, &plain.running_mean));
    let wanted = unbiased_from_population(&unbiased, 0);
    assert!(super::batches::apart(&ours.running_var, &wanted) < 1e-12);
}
