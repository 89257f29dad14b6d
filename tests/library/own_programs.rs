//! Programs of users as processes: their help, and mistakes that they report in one line.
//!
//! Programs that no example contains are tests of this file, which start themselves again for each rank.

use crate::{
    common::{Outcome, command, finish, run_example},
    tracking::learner::{Line, Stack},
};
use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Tensor};
use burn_ddp::{
    Context, DistributedDataParallel, Trainer, TrainerArgs, launch,
    loader::{DistributedLoader, ShardedLoader},
};
use clap::Parser;
use std::{
    env, fs,
    path::Path,
    process::{ExitCode, exit},
};

/// Whether this is a process of a test's program, and not the test.
pub fn is_program() -> bool {
    env::var_os("BURN_DDP_TEST_PROGRAM").is_some()
}

/// Runs `program` on two ranks of the test with this path. Returns `None` in the processes of the program.
pub fn two_ranks(test: &str, program: fn(&Context) -> anyhow::Result<()>) -> Option<Outcome> {
    if is_program() {
        exit(i32::from(launch(program) != ExitCode::SUCCESS));
    }
    // A program in cargo's folder of tests may not start ranks.
    let link = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test.replace("::", "-"));
    let _ = fs::remove_file(&link);
    fs::hard_link(env::current_exe().expect("this program"), &link).expect("a link to this program");
    let mut program = command(&link, &["--exact", test, "--nocapture"]);
    program.env("BURN_DDP_TEST_PROGRAM", "1").env("CUDA_VISIBLE_DEVICES", "").env("RUST_BACKTRACE", "0");
    Some(finish(program.spawn().expect("a process")))
}

/// Makes batches of one column, except of the number 17.
struct Column;

impl Batcher<u8, Tensor<2>> for Column {
    fn batch(&self, numbers: Vec<u8>, device: &Device) -> Tensor<2> {
        assert!(!numbers.contains(&17), "17 has no label");
        let numbers: Vec<f32> = numbers.into_iter().map(f32::from).collect();
        Tensor::<1>::from_data(&*numbers, device).unsqueeze_dim(1)
    }
}

#[test]
fn a_network_without_autodiff_is_reported_by_one_rank() {
    let outcome = two_ranks("own_programs::a_network_without_autodiff_is_reported_by_one_rank", |context| {
        let net: Linear = LinearConfig::new(1, 1).init(&Device::flex());
        DistributedDataParallel::new(net, context.group())?;
        Ok(())
    });
    let Some(outcome) = outcome else { return };
    outcome.failed_with(&["error: rank 0: the network has no trainable parameters", "autodiff"]);
}

#[test]
fn a_trainer_reports_a_network_without_autodiff() {
    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        trainer: TrainerArgs,
    }
    let outcome = two_ranks("own_programs::a_trainer_reports_a_network_without_autodiff", |context| {
        let args = Flags::parse_from(["program", "--run-dir", "/nonexistent/never-written"]);
        let trainer = Trainer::new(context, &args.trainer);
        let points = || InMemDataset::new(vec![0.5; 20]);
        let loaders = trainer.loaders(points(), points(), Stack);
        trainer.fit(Line::new(&Device::flex()), AdamConfig::new().init(), loaders).map(drop)
    });
    let Some(outcome) = outcome else { return };
    outcome.failed_with(&["error: rank 0: the network has no trainable parameters", "autodiff"]);
    assert_eq!(outcome.stdout.matches("epoch").count(), 0, "before training: {outcome:#?}");
}

#[test]
fn a_batcher_that_panics_is_reported_with_its_text() {
    let outcome = two_ranks("own_programs::a_batcher_that_panics_is_reported_with_its_text", |context| {
        let numbers = InMemDataset::new((0..20).collect());
        let loader = ShardedLoader::builder(numbers, Column).batch_size(2).num_workers(1);
        for batch in loader.build(context.world()).epoch(1, 0, context.device()) {
            batch?;
        }
        Ok(())
    });
    let Some(outcome) = outcome else { return };
    let error = outcome.stderr.lines().find_map(|line| line.strip_prefix("error: rank ")).expect("an error");
    assert_eq!(
        &error[1..],
        ": cannot read the data: the batcher or the data set panicked: 17 has no label",
        "{outcome:#?}"
    );
}

/// Runs `your_model` on the CPU, with the first rows of a table.
fn your_model(rows: usize, flags: &str) -> Outcome {
    let folder = tempfile::tempdir().expect("temporary folder");
    let table = folder.path().join("points.csv");
    fs::write(&table, (0..rows).map(|i| format!("{i},1,{}\n", i % 3)).collect::<String>()).expect("written");
    let files = format!("--data {} --run-dir {}/run", table.display(), folder.path().display());
    let outcome = run_example("your_model", &format!("--device cpu --progress plain {files} {flags}"));
    let has_run = folder.path().join("run").exists();
    assert_eq!(has_run, outcome.code == Some(0), "a run that does not begin leaves no folder: {outcome:#?}");
    outcome
}

#[test]
fn an_empty_data_set_is_an_error() {
    for (rows, flags, set) in [
        (0, "--mode single", "training"),
        (0, "--valid-split 0.5", "training"),
        (0, "--nproc-per-node 3 --find-lr", "training"),
        (1, "--valid-split 0.5", "validation"),
        (4, "--nproc-per-node 2", "test"),
    ] {
        let message = format!("the {set} set has no samples");
        let outcome = your_model(rows, flags);
        let text = outcome.failed_with(&[&message]);
        assert_eq!(text.matches("error: ").count(), 1, "one rank reports the error: {text}");
    }
}

#[test]
fn ranks_without_samples_use_no_parameters() {
    // Four points to train on.
    let outcome = your_model(5, "--nproc-per-node 6 --epochs 2").succeeded();
    assert!(!outcome.stderr.contains("used these parameters"), "{outcome:#?}");
}

#[test]
fn the_help_begins_with_the_programs_own_flags() {
    for (name, about, own) in [
        ("your_model", "Train a classifier of points", &["--data <FILE>", "--hidden <HIDDEN>", "--help"][..]),
        ("buckets", "", &["--bucket-mb", "--steps", "--help"]),
        ("custom_loop", "", &["--help"]),
    ] {
        for flag in ["-h", "--help"] {
            let text = run_example(name, flag).succeeded().stdout;
            let (before, flags) = text.split_once("Usage: ").expect("the usage");
            assert_eq!(before.trim(), about, "the program's own description: {text}");
            let (options, library) = flags.split_once("\nWorld:").expect("the library's flags");
            assert!(options.contains("\nOptions:"), "{text}");
            assert!(own.iter().all(|flag| options.contains(flag) && !library.contains(flag)), "{text}");
        }
    }
}
