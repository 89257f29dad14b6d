//! `DdpStrategy` and `DpStrategy` in 16 bits.

use super::{
    BRIGHT, Batch, Net, batch,
    common::{Kind, options, world},
    device, training, worst,
};
use crate::reports::{Listen, Reports};
use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, Device};
use burn::train::Learner;
use burn_ddp_collective::{
    Error, ProcessGroup, StepOptions, World,
    dp::DataParallelConfig,
    gradient::ReducerOptions,
    loader::ShardedLoader,
    precision::Precision,
    strategy::{Callback, DdpStrategy, Distributed, DpStrategy, Join, ParallelStrategy},
};
use std::sync::Arc;

/// Samples of a global batch.
const BATCH: usize = 6;

struct Stack;

impl Batcher<usize, Batch> for Stack {
    fn batch(&self, samples: Vec<usize>, device: &Device) -> Batch {
        batch(&samples, device)
    }
}

/// Ends the run if a gradient is not f32 or missing.
struct GradientTypes;

impl Callback<Net> for GradientTypes {
    fn on_gradients(&mut self, step: usize, net: &Net, grads: &GradientsParams) -> Result<(), String> {
        let types = [
            grads.get::<2>(net.linear.weight.id).map(|grad| grad.dtype()),
            grads.get::<1>(net.factor.id).map(|grad| grad.dtype()),
        ];
        // A step that overflowed has none.
        let right = types == [Some(DType::F32); 2] || grads.is_empty();
        if right { Ok(()) } else { Err(format!("gradients of step {step}: {types:?}")) }
    }

    fn distributed(&mut self) -> Option<&mut dyn Join> {
        Some(self)
    }
}

impl Distributed for GradientTypes {
    type State = ();
    fn state(&mut self) {}
    fn join(&mut self, _: Vec<()>) {}
}

/// A run of three epochs.
#[derive(Clone, Copy)]
struct Run<'a> {
    precision: Precision,
    accumulation: usize,
    samples: &'a [usize],
}

impl Run<'_> {
    fn loader(self, world: World) -> Arc<ShardedLoader<usize, Batch>> {
        let samples = InMemDataset::new(self.samples.to_vec());
        Arc::new(ShardedLoader::builder(samples, Stack).batch_size(BATCH / world.size).build(world))
    }

    fn fit(self, strategy: ParallelStrategy<Net>, world: World) -> Result<Reports, Error> {
        let listen = Arc::new(Listen::default());
        let strategy =
            strategy.with_observer(listen.clone()).with_callback(GradientTypes).with_options(StepOptions {
                grad_accum_steps: self.accumulation,
                reducer: ReducerOptions { precision: self.precision, ..ReducerOptions::default() },
                allow_non_finite: true,
                ..StepOptions::default()
            });
        let loader = self.loader(world);
        let learner = Learner::new(Net::new(&device()), SgdConfig::new().init(), 0.2);
        strategy.launch(training::<Net>(".", loader.clone(), loader, 3), learner)?;
        Ok(listen.take())
    }

    fn one_rank(self, group: ProcessGroup) -> DdpStrategy<Net> {
        let loader = self.loader(group.world());
        DdpStrategy::new(group, &Device::flex(), loader.clone(), loader)
    }

    /// The reports of rank 0; all ranks have equal parameters.
    fn ranks(self, size: usize) -> Reports {
        let mut reports = world(Kind::Thread, size, options(), |group: ProcessGroup| {
            let world = group.world();
            self.fit(self.one_rank(group).with_parallel_step(), world).expect("a run")
        });
        assert!(reports.iter().all(|rank| rank.epochs[2].digest == reports[0].epochs[2].digest));
        reports.swap_remove(0)
    }

    fn replicas(self, count: usize) -> Reports {
        let alone = World { rank: 0, size: 1 };
        let (loader, config) = (self.loader(alone), DataParallelConfig::new(&vec![Device::flex(); count]));
        let strategy = DpStrategy::on_devices(config, loader.clone(), loader).expect("devices");
        self.fit(strategy, alone).expect("a run")
    }
}

#[test]
fn every_mode_follows_f32_without_code_in_the_model() {
    let samples: Vec<usize> = (0..60).collect();
    let run = |precision| Run { precision, accumulation: 1, samples: &samples };
    let exact = run(Precision::F32).ranks(1);
    let wanted = exact.losses();
    assert!(wanted.len() == 30 && wanted[29] < 0.5 * wanted[0], "{wanted:?}");
    for (precision, tolerance) in [(Precision::F32, 1e-4), (Precision::F16, 0.002), (Precision::Bf16, 0.02)] {
        let run = run(precision);
        for (way, reports) in [
            ("1 rank", run.ranks(1)),
            ("2 ranks", run.ranks(2)),
            ("1 replica", run.replicas(1)),
            ("2 replicas", run.replicas(2)),
            ("3 replicas", run.replicas(3)),
        ] {
            let difference = worst(&reports.losses(), &wanted);
            // The machine decides whether a rank is slow.
            let warnings: Vec<_> =
                reports.warnings.iter().filter(|text| !text.contains(" is slow: ")).collect();
            assert_eq!(warnings, [""; 0], "{precision} {way}");
            println!("{precision} {way}: largest difference of the loss {difference}");
            assert!(
                difference < tolerance,
                "{precision} {way}: {difference}\n{:?}\n{wanted:?}",
                reports.losses()
            );
            let same = reports.epochs[2].digest == exact.epochs[2].digest;
            assert!(!same || precision == Precision::F32, "{precision} {way} does something");
        }
    }
}

#[test]
fn f32_runs_the_train_step_with_the_same_bits() {
    let samples: Vec<usize> = (0..24).collect();
    let run = Run { precision: Precision::F32, accumulation: 1, samples: &samples };
    let solo = ProcessGroup::solo();
    let plain = run.fit(run.one_rank(solo.clone()), solo.world()).expect("a run");
    assert_eq!(run.ranks(1).epochs[2].digest, plain.epochs[2].digest);
}

#[test]
fn a_train_step_that_does_not_cast_is_an_error_that_names_the_remedy() {
    let samples: Vec<usize> = (0..24).collect();
    let run = Run { precision: Precision::Bf16, accumulation: 1, samples: &samples };
    let solo = ProcessGroup::solo();
    let error = run.fit(run.one_rank(solo.clone()), solo.world()).err().expect("an error").to_string();
    for part in ["precision bf16", "dtype mismatch", "Trainer::data_parallel()", "Scatter::cast"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn accumulated_batches_are_cast_and_scaled_too() {
    let samples: Vec<usize> = (0..60).collect();
    let run = |precision| Run { precision, accumulation: 2, samples: &samples };
    let wanted = run(Precision::F32).ranks(1).losses();
    for reports in [run(Precision::F16).ranks(2), run(Precision::F16).replicas(2)] {
        let difference = worst(&reports.losses(), &wanted);
        assert!(difference < 0.002, "{difference}");
    }
}

#[test]
fn an_overflow_of_one_part_skips_the_step_on_all_replicas() {
    // The last sample of the second batch.
    let mut samples: Vec<usize> = (0..BATCH).chain(0..BATCH).chain(0..BATCH).collect();
    samples[2 * BATCH - 1] += BRIGHT;
    let run = |samples| Run { precision: Precision::F16, accumulation: 1, samples };
    let undisturbed: Vec<usize> = (0..BATCH).chain(0..BATCH).collect();
    for (way, reports, twice) in [
        ("2 ranks", run(&samples).ranks(2), run(&undisturbed).ranks(2)),
        ("2 replicas", run(&samples).replicas(2), run(&undisturbed).replicas(2)),
    ] {
        let steps: Vec<_> = reports.steps.iter().take(3).map(|s| (s.loss_scale, s.skipped)).collect();
        let (before, after) = (Some(65536.0), Some(32768.0));
        assert_eq!(steps, [(before, false), (before, true), (after, false)], "{way}");
        assert_eq!(reports.epochs[0].skipped_steps, 1, "{way}");
        // The skipped step changes no parameter.
        assert_eq!(reports.steps[2].loss, twice.steps[1].loss, "{way}");
        assert_ne!(reports.steps[2].loss, reports.steps[0].loss, "{way}");
    }
}
