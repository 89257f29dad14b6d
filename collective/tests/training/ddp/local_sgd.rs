//! Local SGD compared with its formula, computed for all ranks in one thread.

use super::{
    Net, assert_close,
    common::{self, Kind},
    device, epoch, filled, loader, optimizer, options_with, parameters,
};
use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn_ddp_collective::{
    DistributedDataParallel, Error, ParallelModule, ProcessGroup, StepOptions, World,
    gradient::{HalfPrecision, TopK},
    loader::DistributedLoader,
    local_sgd::LocalSgd,
    module_state,
    precision::Precision,
};
use std::{cell::RefCell, ops::RangeInclusive, sync::Arc, thread, time::Duration};

/// Nine steps per epoch, of which the last has fewer samples than ranks.
const SAMPLES: usize = 98;

fn adam_w() -> ModuleOptimizer {
    AdamWConfig::new().with_weight_decay(0.1).init()
}

fn wrap(net: Net, group: &ProcessGroup, options: &StepOptions) -> ParallelModule<Net> {
    DistributedDataParallel::with_options(net, group, options.clone()).expect("a model").into()
}

fn local(sgd: LocalSgd) -> StepOptions {
    StepOptions { local_sgd: Some(sgd), ..StepOptions::default() }
}

/// Options for local SGD with changes.
fn local_with(sgd: LocalSgd, set: impl FnOnce(&mut StepOptions)) -> StepOptions {
    StepOptions { local_sgd: Some(sgd), ..options_with(set) }
}

/// Trains epochs `epochs`, and synchronises after each.
fn train(
    model: &mut ParallelModule<Net>,
    optimizer: &mut ModuleOptimizer,
    world: World,
    precision: Precision,
    epochs: RangeInclusive<usize>,
) {
    let loader = loader(world, SAMPLES, precision);
    for number in epochs {
        epoch(model, optimizer, &loader, number, || 0.02);
        model.synchronize().expect("equal replicas");
    }
}

/// The parameters after two epochs, equal on all ranks.
fn trained(kind: Kind, size: usize, options: &StepOptions, make: fn() -> ModuleOptimizer) -> Vec<f32> {
    let mut ranks = common::world(kind, size, common::options(), |group| {
        let mut model = wrap(Net::new(false), &group, options);
        train(&mut model, &mut make(), group.world(), options.reducer.precision, 1..=2);
        parameters(model.module())
    });
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert!(ranks.iter().all(|rank| bits(rank) == bits(&ranks[0])));
    ranks.remove(0)
}

/// A model and its optimizer for each rank.
type Ranks = Vec<(Net, ModuleOptimizer)>;

/// The outer optimizer on numbers.
struct Outer {
    sgd: LocalSgd,
    values: Vec<f64>,
    velocity: Vec<f64>,
}

impl Outer {
    /// Differences from the parameters of the ranks, on average.
    fn differences(&self, ranks: &Ranks) -> Vec<f64> {
        let all: Vec<Vec<f32>> = ranks.iter().map(|(net, _)| parameters(net)).collect();
        let mean = |(i, value): (usize, &f64)| {
            all.iter().map(|rank| value - f64::from(rank[i])).sum::<f64>() / all.len() as f64
        };
        self.values.iter().enumerate().map(mean).collect()
    }

    /// Makes a step. The ranks continue with it, and with the fraction `own` of their own parameters.
    fn step(&mut self, ranks: &mut Ranks, differences: &[f64], own: f64) {
        let LocalSgd { outer_lr, outer_momentum, .. } = self.sgd;
        for ((value, velocity), mean) in self.values.iter_mut().zip(&mut self.velocity).zip(differences) {
            *velocity = outer_momentum * *velocity + mean;
            *value -= outer_lr * (mean + outer_momentum * *velocity);
        }
        for (net, _) in ranks {
            let values = RefCell::new(self.values.iter().zip(parameters(net)));
            let next = || {
                let (value, before) = values.borrow_mut().next().expect("a value");
                (own * f64::from(before) + (1.0 - own) * value) as f32
            };
            *net = filled(net.clone(), |_, _| next());
        }
    }
}

/// The same without this library.
fn expected(size: usize, sgd: LocalSgd, make: fn() -> ModuleOptimizer) -> Vec<f64> {
    let values: Vec<f64> = parameters(&Net::new(false)).into_iter().map(f64::from).collect();
    let mut outer = Outer { sgd, velocity: vec![0.0; values.len()], values };
    let mut ranks: Ranks = (0..size).map(|_| (Net::new(false), make())).collect();
    let (mut count, mut exchange) = (0, None::<Vec<f64>>);
    for epoch in 1..=2 {
        let mut batches: Vec<_> = (0..size)
            .map(|rank| {
                let loader = loader(World { rank, size }, SAMPLES, Precision::F32);
                loader.epoch(epoch, 0, &device()).map(|batch| batch.expect("in memory")).collect::<Vec<_>>()
            })
            .collect();
        let steps = batches[0].len();
        for step in 1..=steps {
            for ((net, optimizer), batches) in ranks.iter_mut().zip(&mut batches) {
                let batch = batches.remove(0);
                if batch.samples > 0 {
                    let grads = GradientsParams::from_grads(Net::loss(net, batch.item).backward(), net);
                    *net = optimizer.step(0.02, net.clone(), grads);
                }
            }
            count += 1;
            if let Some(differences) = exchange.take_if(|_| count == sgd.overlap) {
                outer.step(&mut ranks, &differences, 0.5);
            }
            if count == sgd.sync_every && sgd.overlap > 0 {
                (count, exchange) = (0, Some(outer.differences(&ranks)));
            }
            if count == sgd.sync_every || step == steps {
                if let Some(differences) = exchange.take() {
                    outer.step(&mut ranks, &differences, 0.5);
                }
                let differences = outer.differences(&ranks);
                outer.step(&mut ranks, &differences, 0.0);
                count = 0;
            }
        }
    }
    outer.values
}

#[test]
fn the_parameters_follow_the_formula() {
    for (size, sgd) in [
        (2, LocalSgd::averaging(1)),
        (2, LocalSgd::averaging(4)),
        (3, LocalSgd::diloco(4)),
        // Longer than an epoch.
        (3, LocalSgd::diloco(100)),
        (1, LocalSgd::diloco(4)),
        (3, LocalSgd { overlap: 2, ..LocalSgd::diloco(4) }),
        // The exchange of the last step is finished at the end of the epoch, in which a part of another one is left.
        (2, LocalSgd { overlap: 1, ..LocalSgd::averaging(3) }),
        (2, LocalSgd { overlap: 3, ..LocalSgd::diloco(4) }),
        (1, LocalSgd { overlap: 1, ..LocalSgd::diloco(2) }),
    ] {
        for make in [optimizer, adam_w] {
            let ours: Vec<f64> =
                trained(Kind::Thread, size, &local(sgd), make).into_iter().map(f64::from).collect();
            assert_close(&format!("{size} ranks, {sgd}"), &ours, &expected(size, sgd, make), 2e-6);
        }
    }
}

/// The average of SGD steps from equal parameters is the step with the average gradient, if batches are equal.
#[test]
fn one_step_of_sgd_is_that_of_averaged_gradients() {
    let run = |options: StepOptions| {
        let ranks = common::world(Kind::Thread, 2, common::options(), |group| {
            let mut model = wrap(Net::new(false), &group, &options);
            let loader = loader(group.world(), 96, Precision::F32);
            epoch(&mut model, &mut optimizer(), &loader, 1, || 0.1);
            parameters(model.module())
        });
        ranks[0].iter().copied().map(f64::from).collect::<Vec<_>>()
    };
    let [ddp, local] = [StepOptions::default(), local(LocalSgd::averaging(1))].map(run);
    assert_close("one step", &local, &ddp, 1e-6);
}

#[test]
fn accumulation_clipping_hooks_and_bf16_work_on_all_transports() {
    let with = |set: fn(&mut StepOptions)| local_with(LocalSgd::diloco(3), set);
    let plain = trained(Kind::Thread, 2, &with(|_| ()), adam_w);
    let top_k = |options: &mut StepOptions| {
        options.reducer.hook = Some(Arc::new(TopK::new(0.5).expect("a ratio")));
    };
    for (what, kind, options, tolerance) in [
        ("tcp", Kind::Tcp, with(|_| ()), Some(0.0)),
        ("accumulation", Kind::Thread, with(|options| options.grad_accum_steps = 2), None),
        ("clipping", Kind::Thread, with(|options| options.clip_grad_norm = Some(0.05)), None),
        ("bf16", Kind::Thread, with(|options| options.reducer.precision = Precision::Bf16), Some(0.15)),
        (
            "compressed differences",
            Kind::Thread,
            with(|options| options.reducer.hook = Some(Arc::new(HalfPrecision::Bf16))),
            Some(0.01),
        ),
        ("error feedback", Kind::Thread, with(top_k), None),
        (
            "steps during the exchange",
            Kind::Thread,
            local(LocalSgd { overlap: 1, ..LocalSgd::diloco(3) }),
            None,
        ),
        (
            "steps during a compressed exchange",
            Kind::Tcp,
            local_with(LocalSgd { overlap: 1, ..LocalSgd::diloco(3) }, top_k),
            None,
        ),
    ] {
        let other = trained(kind, 2, &options, adam_w);
        let difference = plain.iter().zip(&other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        match tolerance {
            Some(most) => assert!(difference <= most, "{what}: {difference}"),
            None => assert!(difference > 1e-5 && difference < 1.0, "{what}: {difference}"),
        }
    }
}

/// Continues after the first epoch in a new wrapper, with its optimizer and the records of a checkpoint.
#[test]
fn the_outer_optimizer_is_restored() {
    let options = local(LocalSgd::diloco(4));
    let whole = trained(Kind::Thread, 2, &options, adam_w);
    let resumed = common::world(Kind::Thread, 2, common::options(), |group| {
        let mut model = wrap(Net::new(false), &group, &options);
        let mut optimizer = adam_w();
        train(&mut model, &mut optimizer, group.world(), Precision::F32, 1..=1);
        let (module, state) = (model.module().clone(), model.state());
        let outer = model.outer_optimizer().expect("local SGD").to_record(module.clone());
        let mut model = wrap(Net::new(false).load_record(module.into_record()), &group, &options);
        model.load_state(state);
        let module = model.module().clone();
        let loaded = model.outer_optimizer().expect("local SGD").load_record(module, outer);
        loaded.expect("the same model");
        train(&mut model, &mut optimizer, group.world(), Precision::F32, 2..=2);
        parameters(model.module())
    });
    assert_eq!(resumed, [whole.clone(), whole]);
}

/// The order of the ranks' calls is the same, whatever their speed.
#[test]
fn a_slow_rank_delays_the_exchange_only() {
    let sgd = local(LocalSgd { overlap: 2, ..LocalSgd::diloco(4) });
    let plain = trained(Kind::Thread, 2, &sgd, adam_w);
    let delayed = common::world(Kind::Thread, 2, common::options(), |group| {
        let mut model = wrap(Net::new(false), &group, &sgd);
        let (mut optimizer, loader) = (adam_w(), loader(group.world(), SAMPLES, Precision::F32));
        for number in 1..=2 {
            epoch(&mut model, &mut optimizer, &loader, number, || {
                thread::sleep(Duration::from_millis(if group.rank() == 1 { 5 } else { 0 }));
                0.02
            });
            model.synchronize().expect("equal replicas");
        }
        parameters(model.module())
    });
    assert_eq!(delayed, [plain.clone(), plain]);
}

#[test]
fn the_ranks_differ_between_synchronisations_only() {
    let digests = common::world(Kind::Thread, 2, common::options(), |group| {
        let mut model = wrap(Net::new(false), &group, &local(LocalSgd::averaging(2)));
        let mut optimizer = optimizer();
        let mut digests = Vec::new();
        for batch in loader(group.world(), 96, Precision::F32).epoch(1, 0, &device()).take(4) {
            let (loss, gradients) = model.backward(batch.expect("in memory"), Net::loss).expect("backward");
            model.step(&mut optimizer, 0.1, gradients).expect("step");
            assert!(loss.mean().expect("the host").is_finite());
            digests.push(module_state::digest(model.module()).expect("a digest"));
        }
        digests
    });
    let equal: Vec<bool> = digests[0].iter().zip(&digests[1]).map(|(a, b)| a == b).collect();
    assert_eq!(equal, [false, true, false, true]);
}

#[test]
fn options_that_cannot_be_used_are_named() {
    let base = LocalSgd::averaging(2);
    let with = |set: fn(&mut StepOptions)| local_with(base, set);
    for (wanted, options) in [
        ("sync_every is 0", local(LocalSgd::averaging(0))),
        ("outer_lr is NaN", local(LocalSgd { outer_lr: f64::NAN, ..base })),
        ("overlap is 2; it must be less than sync_every", local(LocalSgd { overlap: 2, ..base })),
        ("outer_momentum is 1", local(LocalSgd { outer_momentum: 1.0, ..base })),
        ("turn off sync_batch_norm", with(|options| options.sync_batch_norm = true)),
        ("turn off shard_optimizer", with(|options| options.reducer.shard_optimizer = true)),
        ("use bf16 or f32", with(|options| options.reducer.precision = Precision::F16)),
    ] {
        let made = DistributedDataParallel::with_options(Net::new(false), &ProcessGroup::solo(), options);
        let Some(Error::Invalid(error)) = made.err() else { panic!("{wanted}: no error") };
        assert!(error.starts_with("local SGD: ") && error.contains(wanted), "{error}");
    }
}
