//! Tasks besides classification with the `Trainer`: programs of users that control a run and use its result.

use crate::{
    common::Run,
    own_programs::{is_program, two_ranks},
    tracking::learner::{Line, Stack},
};
use anyhow::{Context as _, ensure};
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::module::ParamGroup;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, SgdConfig, momentum::MomentumConfig};
use burn::tensor::Tensor;
use burn_ddp::{
    Context, Trained, Trainer, TrainerArgs, launch_threads_with,
    lr::FnLr,
    run::LoopState,
    strategy::{Callback, Distributed, EpochReport, Join, RunControl},
};
use clap::Parser;
use std::{
    fs,
    path::{Path, PathBuf},
};

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    trainer: TrainerArgs,
}

/// Flags of a program, separated by spaces.
fn flags(text: &str) -> Flags {
    Flags::parse_from(["program"].into_iter().chain(text.split_whitespace()))
}

/// Folder of a test, which the ranks of its program find, too.
fn folder(test: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("tasks").join(test)
}

/// Removes the folder of a test, except in the processes of its program.
fn clear(test: &str) {
    if !is_program() {
        let _ = fs::remove_dir_all(folder(test));
    }
}

/// Fits a line through 40 points.
fn fit<'a>(
    context: &'a Context,
    args: &'a Flags,
    configure: impl FnOnce(Trainer<'a, Line>) -> Trainer<'a, Line>,
) -> anyhow::Result<Trained<Line>> {
    let trainer = configure(Trainer::new(context, &args.trainer));
    let points = |range: std::ops::Range<u8>| InMemDataset::new(range.map(|i| f32::from(i) / 40.0).collect());
    let loaders = trainer.loaders(points(0..40), points(40..60), Stack);
    let model = trainer.init(Line::new);
    trainer.fit(model, SgdConfig::new().init(), loaders)
}

#[test]
fn the_folds_of_a_cross_validation_need_no_files() {
    const TEST: &str = "the_folds_of_a_cross_validation_need_no_files";
    clear(TEST);
    let outcome = two_ranks(&format!("tasks::{TEST}"), |context| {
        for (fold, lr) in [0.1, 0.05].into_iter().enumerate() {
            let run = folder(TEST).join(fold.to_string());
            let args = flags(&format!("--epochs 2 --lr {lr} --batch-size 8 --run-dir {}", run.display()));
            let trained = fit(context, &args, |trainer| trainer)?;
            let losses: Vec<f64> = trained.epochs.iter().map(|report| report.train_loss()).collect();
            let prediction = trained.model.predict(2.0)?;
            let (epochs, loss) = (losses.len(), trained.metric("loss").unwrap_or(f64::NAN));
            // Every rank has the result.
            let loss = context.log("mean over the ranks", loss)?;
            context.print(&format!("fold {fold}: {epochs} {} {loss} {prediction}", trained.is_complete));
        }
        Ok(())
    });
    let Some(outcome) = outcome else { return };
    let stdout = outcome.succeeded().stdout;
    for fold in ["0", "1"] {
        let line = stdout.lines().find_map(|line| line.strip_prefix(&format!("fold {fold}: ")));
        let words: Vec<&str> = line.expect("a line for the fold").split(' ').collect();
        let loss = Run::at(folder(TEST).join(fold)).summary()["test_loss"].as_f64().expect("a loss");
        assert_eq!((words[0], words[1], words[2].parse()), ("2", "true", Ok(loss)), "{stdout}");
        assert!(words[3].parse::<f32>().is_ok_and(f32::is_finite), "{stdout}");
    }
}

/// Requests a checkpoint on the last rank, a lower rate after epoch 1, and the end after epoch 3.
struct Requests {
    is_last: bool,
    batches: usize,
}

impl Callback<Line> for Requests {
    fn on_train_batch(
        &mut self,
        _: &burn::train::RegressionOutput,
        _: usize,
        control: &mut RunControl,
    ) -> Result<(), String> {
        self.batches += 1;
        if self.is_last && self.batches == 2 {
            control.save();
        }
        Ok(())
    }

    fn epoch_done(&mut self, report: &EpochReport, control: &mut RunControl) -> Result<(), String> {
        match report.epoch {
            1 => control.scale_lr(0.5),
            3 => control.stop("three epochs are enough"),
            _ => {}
        }
        Ok(())
    }

    fn distributed(&mut self) -> Option<&mut dyn Join> {
        Some(self)
    }
}

impl Distributed for Requests {
    type State = ();
    fn state(&mut self) {}
    fn join(&mut self, _: Vec<()>) {}
}

#[test]
fn a_callback_ends_the_run_changes_the_rate_and_takes_a_checkpoint() {
    const TEST: &str = "a_callback_ends_the_run_changes_the_rate_and_takes_a_checkpoint";
    let run = Run::at(folder(TEST).join("run"));
    clear(TEST);
    let ranks = || {
        two_ranks(&format!("tasks::{TEST}"), |context| {
            let run = folder(TEST).join("run");
            let more = if run.exists() { "--epochs 5 --resume" } else { "--epochs 9" };
            let common = "--lr 0.1 --scale-lr none --batch-size 5 --valid-split 0.1 --keep-last 99";
            let args = flags(&format!("{common} {more} --run-dir {}", run.display()));
            // The ranks find the folder before rank 0 creates it.
            context.group().barrier()?;
            let is_last = context.rank() + 1 == context.world_size();
            fit(context, &args, |trainer| trainer.callback(move |_| Requests { is_last, batches: 0 }))
                .map(drop)
        })
    };
    let Some(first) = ranks() else { return };
    let stdout = first.succeeded().stdout;
    assert!(stdout.contains("stopped early: three epochs are enough\n"), "{stdout}");
    assert!(stdout.contains("learning rate x 0.5 after epoch 1\n"), "{stdout}");
    let rates = |run: &Run| run.column("steps.csv", "lr");
    // 36 samples in global batches of 10.
    assert_eq!(rates(&run), [[0.1; 4], [0.05; 4], [0.05; 4]].concat());
    assert!(run.path.join("checkpoints/step-000002").is_dir(), "requested by the last rank");
    assert!(run.summary()["test_loss"].is_number(), "the test set is evaluated");
    let Some(second) = ranks() else { return };
    second.succeeded();
    assert_eq!(rates(&run)[12..], [0.05; 8], "the factor is resumed");
}

type Configure = fn(Trainer<'_, Line>) -> Trainer<'_, Line>;

/// Fits a line on `ranks` threads of this process.
fn fit_here(ranks: usize, args: &str, configure: Configure) -> anyhow::Result<()> {
    let args = flags(args);
    let fit = |context: &Context| fit(context, &args, configure).map(drop);
    launch_threads_with(&args.trainer.context, ranks, fit).map(drop)
}

/// The rates of 7 steps, and of 4 with 3 more after a resume.
fn rates(test: &str, configure: Configure) -> [Vec<f64>; 2] {
    clear(test);
    let run = |name: &str, more: &str| {
        let run = folder(test).join(name);
        let args = "--lr 0.1 --scale-lr none --batch-size 10 --epochs 9";
        fit_here(2, &format!("{args} {more} --run-dir {}", run.display()), configure).expect("a run");
        Run::at(run).column("steps.csv", "lr")
    };
    let whole = run("whole", "--max-steps 7");
    run("parts", "--max-steps 4");
    [whole, run("parts", "--max-steps 7 --resume")]
}

#[test]
fn schedulers_of_burn_and_of_the_program_are_resumed() {
    fn of_program(trainer: Trainer<'_, Line>) -> Trainer<'_, Line> {
        trainer.lr_scheduler(|plan| Ok(FnLr::new(move |step| plan.lr / step as f64)))
    }
    fn of_burn(trainer: Trainer<'_, Line>) -> Trainer<'_, Line> {
        trainer.lr_scheduler(|plan| ExponentialLrSchedulerConfig::new(plan.lr, 0.5).init())
    }
    let [whole, parts] = rates("of_program", of_program);
    assert_eq!(whole, (1..=7).map(|step| 0.1 / f64::from(step)).collect::<Vec<_>>());
    assert_eq!(parts, whole);
    let [whole, parts] = rates("of_burn", of_burn);
    assert_eq!(whole[..3], [0.1, 0.05, 0.025]);
    assert_eq!(parts, whole);
    let run = folder("of_burn").join("parts");
    let error = fit_here(
        1,
        &format!("--epochs 10 --lr 0.1 --scale-lr none --resume --run-dir {}", run.display()),
        of_program,
    );
    let message = format!("{:#}", error.expect_err("another scheduler"));
    assert!(message.contains("was made with the learning-rate scheduler"), "{message}");
}

#[test]
fn a_scheduler_contradicts_the_flags_and_reports_its_error() {
    fn bad(trainer: Trainer<'_, Line>) -> Trainer<'_, Line> {
        trainer.lr_scheduler(|plan| ExponentialLrSchedulerConfig::new(plan.lr, 2.0).init())
    }
    let folder = folder("refused");
    for (flag, words) in [
        ("--lr-schedule cosine", "this program has a scheduler; remove the flag"),
        ("--warmup-epochs 1", "this program has a scheduler; remove the flag"),
        ("", "the learning-rate scheduler: "),
    ] {
        let error = fit_here(1, &format!("{flag} --run-dir {}", folder.display()), bad);
        let message = format!("{:#}", error.expect_err("a refusal"));
        assert!(message.contains(words), "{message}");
        assert!(!folder.exists(), "nothing is written");
    }
}

#[test]
fn a_group_without_parameters_is_refused() {
    fn misspelt(trainer: Trainer<'_, Line>) -> Trainer<'_, Line> {
        let [weights, none] = ["weight", "linaer"].map(ParamGroup::from_predicate);
        trainer.lr_group(weights, 0.5).lr_group(none, 0.1)
    }
    let folder = folder("misspelt");
    let error = fit_here(2, &format!("--run-dir {}", folder.display()), misspelt);
    let message = format!("{:#}", error.expect_err("a refusal"));
    let expected = "no parameter is in the group with 0.1 times the learning rate; the model has linear.weight, linear.bias";
    assert!(message.contains(expected), "{message}");
    assert!(!folder.exists(), "nothing is written");
}

/// The state of a loop after one step of Adam.
fn trained(context: &Context) -> anyhow::Result<LoopState> {
    let net = context.init_module(7, |device| LinearConfig::new(2, 1).init(device));
    let mut optimizer = AdamConfig::new().init();
    let loss: Tensor<1> = Linear::forward(&net, Tensor::<2>::ones([1, 2], context.device())).sum();
    let grads = GradientsParams::from_grads(loss.backward(), &net);
    let net = optimizer.step(0.1, net, grads);
    LoopState::new().module("net", &net)?.optimizer("net", &optimizer)?.value("epoch", 3)
}

#[test]
fn a_part_that_a_checkpoint_of_a_loop_lacks_is_an_error() {
    const TEST: &str = "a_part_that_a_checkpoint_of_a_loop_lacks_is_an_error";
    clear(TEST);
    let outcome = two_ranks(&format!("tasks::{TEST}"), |context| {
        let file = folder(TEST).join("states/loop.ckpt");
        ensure!(context.load_state(&file)?.is_none());
        context.save_state(&file, || trained(context))?;
        let state = context.load_state(&file)?.context("it was written")?;
        let optimizer = state.load_optimizer("net", AdamConfig::new().init())?;
        context.print(&format!("tensors {}", optimizer.to_record().len()));
        let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init();
        let wide: Linear = LinearConfig::new(3, 1).init(context.device());
        for result in [
            state.load_optimizer("other", AdamConfig::new().init()).map(drop),
            state.load_optimizer("net", sgd).map(drop),
            state.load_module("net", wide).map(drop),
            state.load_value::<String>("epoch").map(drop),
        ] {
            context.print(&format!("{:#}", result.err().context("no error")?));
        }
        Ok(())
    });
    let Some(outcome) = outcome else { return };
    let stdout = outcome.succeeded().stdout;
    for line in [
        "tensors 4",
        "the checkpoint has no optimizer `other`; it has `module net`, `optimizer net`, `value epoch`",
        "the checkpoint's optimizer `net` is of another kind than the program's",
        "the checkpoint's module `net` does not fit: ",
        "the checkpoint's value `epoch` has another type",
    ] {
        assert!(stdout.contains(line), "{line}: {stdout}");
    }
}
