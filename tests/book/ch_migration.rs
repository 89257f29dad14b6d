//! The claims of the chapter "Coming from PyTorch".

use crate::common::{Outcome, assert_close, command, example, finish, program};
use std::{fs, path::Path};
use tempfile::tempdir;

fn start(program: &Path, flags: &str, folder: &Path) -> Outcome {
    let flags: Vec<&str> = flags.split_whitespace().collect();
    finish(command(program, &flags).current_dir(folder).spawn().expect("cargo built it")).succeeded()
}

/// What a program prints.
#[derive(Debug)]
struct Trained {
    epochs: Vec<usize>,
    losses: Vec<f64>,
    accuracies: Vec<f64>,
    /// Digests of the parameters, one per rank.
    digests: Vec<String>,
}

/// The numbers that follow `name` in the output.
fn values(outcome: &Outcome, name: &str) -> Vec<f64> {
    let name = format!("{name} ");
    let parts = outcome.stdout.split(&name).skip(1);
    parts.map(|rest| rest.split_whitespace().next().expect("a word").parse().expect("a number")).collect()
}

fn trained(name: &str, flags: &str, folder: &Path) -> Trained {
    let outcome = start(&example(name), flags, folder);
    let digests = outcome.stdout.lines().filter_map(|line| line.split_once("parameters "));
    Trained {
        epochs: values(&outcome, "epoch").into_iter().map(|epoch| epoch as usize).collect(),
        losses: values(&outcome, "train loss"),
        accuracies: values(&outcome, "test accuracy"),
        digests: digests.map(|(_, digest)| digest.to_owned()).collect(),
    }
}

fn assert_learns(what: &str, losses: &[f64]) {
    assert_eq!(losses.len(), 5, "{what}");
    assert!(losses[4] < 0.1 * losses[0], "{what}: {losses:?}");
}

#[test]
fn one_device_trains_and_its_weights_are_initial_weights_of_dp() {
    let folder = tempdir().expect("temporary folder");
    assert_learns("single", &trained("single", "", folder.path()).losses);
    for devices in ["cpu:0", "cpu:0,cpu:1"] {
        let flags = format!("--mode dp --device-ids {devices}");
        let fresh = trained("data_parallel", &flags, folder.path());
        assert_learns(devices, &fresh.losses);
        let flags = format!("{flags} --weights single.safetensors");
        let further = trained("data_parallel", &flags, folder.path());
        assert!(further.losses[0] < 0.1 * fresh.losses[0], "{further:?} after {fresh:?}");
    }
    assert!(folder.path().join("data_parallel.safetensors").is_file());
}

#[test]
fn all_ways_to_start_ddp_follow_the_curve_of_one_rank() {
    let folder = tempdir().expect("temporary folder");
    let one = trained("ddp_launcher", "--device cpu --nproc-per-node 1", folder.path());
    assert_learns("one rank", &one.losses);
    let dp = trained("data_parallel", "--mode dp --device-ids cpu:0,cpu:1", folder.path());
    assert_close("dp", &dp.losses, &one.losses, 1e-4);
    for (name, flags, ranks) in [
        ("ddp_launcher", "--device cpu --nproc-per-node 2", 2),
        ("ddp_spawn", "--device cpu --processes 1", 1),
        ("ddp_spawn", "--device cpu --processes 2", 2),
    ] {
        let run = trained(name, flags, folder.path());
        assert_close(name, &run.losses, &one.losses, 1e-4);
        assert_eq!(run.digests.len(), ranks, "{run:?}");
        assert!(run.digests.iter().all(|digest| *digest == run.digests[0]), "{run:?}");
    }
    assert!(folder.path().join("ddp.safetensors").is_file());

    let launcher = format!("launch --nproc-per-node 2 -- {} --device cpu", example("ddp_launcher").display());
    let outcome = start(&program(), &launcher, folder.path());
    assert_close("launched", &values(&outcome, "train loss"), &one.losses, 1e-4);
    assert_eq!(outcome.stdout.lines().filter(|line| line.contains("epoch 5")).count(), 1, "{outcome:#?}");
}

#[test]
fn the_template_resumes_at_the_next_epoch_and_ends_with_the_same_parameters() {
    for ranks in [1, 2] {
        let folder = tempdir().expect("temporary folder");
        let flags = format!("--device cpu --nproc-per-node {ranks} --folder run");
        let whole = trained("template", &flags, folder.path());
        assert_learns("template", &whole.losses);
        assert!(whole.accuracies[4] > 0.9, "{whole:?}");
        assert_eq!((whole.epochs.as_slice(), whole.digests.len()), ([1, 2, 3, 4, 5].as_slice(), ranks));
        assert!(whole.digests.iter().all(|digest| *digest == whole.digests[0]), "{whole:?}");

        let run = folder.path().join("run");
        let events = fs::read_dir(run.join("tensorboard")).expect("TensorBoard's folder");
        let names = events.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
        assert_eq!(names.filter(|name| name.starts_with("events.out.tfevents.")).count(), 1);

        // As if the run had been killed in epoch 4.
        for epoch in ["4", "5"] {
            fs::remove_dir_all(run.join(epoch)).expect("a checkpoint");
        }
        let rest = trained("template", &format!("{flags} --resume"), folder.path());
        assert_eq!(rest.epochs, [4, 5]);
        assert_eq!((&rest.losses[..], &rest.accuracies[..]), (&whole.losses[3..], &whole.accuracies[3..]));
        assert_eq!(rest.digests, whole.digests);
    }
}

#[test]
fn the_metric_of_all_samples_does_not_depend_on_the_number_of_ranks() {
    let folder = tempdir().expect("temporary folder");
    for ranks in 1..=3 {
        let outcome =
            start(&example("metrics"), &format!("--device cpu --nproc-per-node {ranks}"), folder.path());
        // 11 of 101 samples, of which none counts twice.
        assert_eq!(values(&outcome, "all samples"), [0.108911], "{ranks} ranks: {outcome:#?}");
    }
}
