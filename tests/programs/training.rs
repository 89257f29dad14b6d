//! Training runs of the real program: run folders, world sizes, learning-rate warm-up, and PyTorch's losses.

use crate::common::{
    Outcome, Run, assert_close, example_command,
    reference::{Reference, uniform},
    train, trained,
};
use rand_mt::Mt;
use std::{fs::File, io::Read, os::fd::FromRawFd, ptr::null_mut};

/// A small run on images of MNIST, fast enough to repeat.
const SMALL: &str = "--dataset subset --train-limit 480 --eval-limit 101 --max-steps 12";

#[test]
fn two_ranks_write_a_complete_run_folder() {
    let run = trained(&format!("{SMALL} --nproc-per-node 2 --batch-size 16 --lr 0.02"));
    let summary = run.summary();
    for (key, wanted) in [("mode", "ddp"), ("device", "cpu"), ("dataset", "subset")] {
        assert_eq!(summary[key], wanted, "{summary:#}");
    }
    for (key, wanted) in [("world_size", 2), ("epochs", 1), ("steps", 12)] {
        assert_eq!(summary[key], wanted, "{summary:#}");
    }
    for key in ["test_accuracy", "test_loss", "samples_per_second", "seconds"] {
        assert!(summary[key].as_f64().is_some_and(|x| x.is_finite() && x > 0.0), "{key}: {summary:#}");
    }
    assert_ne!(summary["transport"], "none");
    assert_eq!(run.column("steps.csv", "step"), (1..=12).map(f64::from).collect::<Vec<_>>());
    assert!(run.column("steps.csv", "lr").iter().all(|lr| (lr - 0.04).abs() < 1e-12), "scaled by 2 ranks");
    assert_eq!(run.column("epochs.csv", "test_accuracy").len(), 1);
    assert_eq!(run.json("config.json")["lr_factor"], 2.0);
    assert!(run.path.join("model.bpk").metadata().is_ok_and(|m| m.len() > 4 * 1_199_882));
}

#[test]
fn equal_configurations_give_bit_identical_runs() {
    for mode in ["--nproc-per-node 1", "--nproc-per-node 2", "--mode dp --device-ids cpu:0,cpu:1,cpu:2"] {
        let flags = format!("{SMALL} --batch-norm {mode} --batch-size 20");
        assert_eq!(trained(&flags).digest(), trained(&flags).digest(), "{mode}");
    }
}

#[test]
fn every_world_size_follows_the_same_trajectory() {
    // 500 samples at a global batch of 48: the last global batch is short, and uneven over ranks.
    let flags = "--dataset subset --train-limit 500 --eval-limit 50 --dropout 0 --scale-lr none --epochs 2";
    let run =
        |world: usize| trained(&format!("{flags} --nproc-per-node {world} --batch-size {}", 48 / world));
    let one = run(1);
    assert_eq!(one.losses().len(), 22);
    for world in [2, 3, 4] {
        let many = run(world);
        assert_close(&format!("loss at {world} ranks"), &many.losses(), &one.losses(), 2e-3);
        let (ours, theirs) = (many.column("epochs.csv", "test_loss"), one.column("epochs.csv", "test_loss"));
        assert_close(&format!("test loss at {world} ranks"), &ours, &theirs, 2e-3);
    }
}

#[test]
fn replicas_in_one_process_train_like_one_device() {
    // The last batch has 3 samples, for 4 replicas.
    let flags = "--dataset subset --train-limit 35 --eval-limit 50 --dropout 0 --batch-size 16 --epochs 2";
    let one = trained(&format!("{flags} --mode single"));
    for more in [
        "cpu:0,cpu:1",
        "cpu:3,cpu:0,cpu:1,cpu:2 --output-device cpu:1 --dp-reduce tree",
        "cpu:0,cpu:1,cpu:2 --dp-reduce all-reduce",
    ] {
        let many = trained(&format!("{flags} --mode dp --device-ids {more}"));
        assert_close(more, &many.losses(), &one.losses(), 1e-4);
        assert_eq!(many.summary()["mode"], "dp");
        let [ours, theirs] = [&many, &one].map(|run| run.column("epochs.csv", "test_loss"));
        assert_close(more, &ours, &theirs, 1e-4);
    }
}

#[test]
fn every_test_image_counts_once() {
    // 101 images over 3 ranks in batches of 16: shares of 34, 34 and 33.
    let run = trained(&format!("{SMALL} --nproc-per-node 3 --batch-size 16"));
    let correct = run.column("epochs.csv", "test_accuracy")[0] * 101.0;
    assert!((correct - correct.round()).abs() < 1e-9, "{correct} correct answers");
}

#[test]
fn more_ranks_than_samples_finish() {
    let run = trained(
        "--dataset subset --train-limit 5 --eval-limit 2 --nproc-per-node 3 --batch-size 1 --epochs 2",
    );
    assert_eq!(run.losses().len(), 4);
    assert!(run.losses().iter().all(|loss| loss.is_finite()));
}

#[test]
fn warm_up_rises_from_the_base_rate_to_the_scaled_one() {
    let flags = "--train-limit 320 --eval-limit 10 --dataset subset --batch-size 16 --nproc-per-node 2";
    let run = trained(&format!("{flags} --lr 0.01 --warmup-epochs 0.5"));
    let lr = run.column("steps.csv", "lr");
    assert_eq!(lr.len(), 10);
    assert_close("warm-up", &lr[..5], &[0.012, 0.014, 0.016, 0.018, 0.02], 1e-12);
    assert_close("after it", &lr[5..], &[0.02; 5], 1e-12);
}

/// PyTorch's `LinearLR`, whose first step has the start factor's rate.
#[test]
fn warm_up_starts_at_a_fraction_of_an_unscaled_rate_too() {
    let rates = |flags: &str| {
        let flags = format!("{flags} --lr 0.04 --warmup-epochs 0.5 --batch-size 16");
        let flags = format!("--dataset subset --train-limit 128 --eval-limit 10 {flags}");
        let run = trained(&flags);
        (run.column("steps.csv", "lr"), run.json("config.json")["warmup_start_factor"].clone())
    };
    let part = |from: f64| [0.0, 0.25, 0.5, 0.75, 1.0].map(|risen| from + (0.04 - from) * risen);
    for world in ["--mode single", "--mode dp --device-ids cpu:0,cpu:1"] {
        let (lr, factor) = rates(world);
        assert_close(world, &lr[..5], &part(0.04 / 3.0), 1e-12);
        assert_close(world, &lr[5..], &[0.04; 3], 1e-12);
        assert!(factor.is_null(), "{factor}");
    }
    let (lr, factor) = rates("--mode single --warmup-start-factor 0.1");
    assert_close("a tenth", &lr[..5], &part(0.004), 1e-12);
    assert_eq!(factor, 0.1);
    // With two ranks, a fraction of the scaled rate.
    let (lr, _) = rates("--nproc-per-node 2 --warmup-start-factor 0.1");
    assert_close("two ranks", &lr, &[0.008, 0.044, 0.08, 0.08], 1e-12);
}

#[test]
fn a_run_that_ends_before_its_warm_up_prints_a_warning() {
    let flags =
        "--device cpu --progress plain --dataset subset --train-limit 64 --eval-limit 10 --batch-size 16";
    let run = |flags: &str| {
        let run = Run::new();
        train(&format!("{flags} --run-dir {}", run.path.display())).succeeded()
    };
    let warned = |outcome: &Outcome| outcome.stderr.contains("warning: --warmup-epochs");
    for world in ["--mode single", "--nproc-per-node 2 --lr 0.025"] {
        let outcome = run(&format!("{flags} --warmup-epochs 5 {world}"));
        let line = outcome.stderr.lines().find(|line| line.contains("--warmup-epochs 5")).expect("a warning");
        assert!(line.contains("the rate reaches 0.0") && line.ends_with("and not 0.050000"), "{line}");
        assert!(outcome.stdout.contains("over 5 epoch(s)"), "{}", outcome.stdout);
    }
    assert!(warned(&run(&format!("{flags} --mode single --warmup-epochs 1 --max-steps 2 --epochs 3"))));
    for enough in ["--mode single --warmup-epochs 0.5", "--nproc-per-node 2 --warmup-epochs 1"] {
        let outcome = run(&format!("{flags} {enough}"));
        assert!(!warned(&outcome), "{outcome:#?}");
    }
}

/// PyTorch's initial weights of the first layer, for the seeds of the reference trajectories.
#[test]
fn initial_weights_of_the_references_equal_pytorchs() {
    let conv1 = |seed| uniform(&mut Mt::new(seed), 4, 9);
    assert_eq!(conv1(2), [0.076_463_39, -0.079_324_77, 0.091_409_564, -0.017_025_948]);
    assert_eq!(conv1(3), [-0.330_491, -0.262_953_76, -0.142_771_69, -0.315_363_47]);
}

/// Compares each step's loss with PyTorch's, for the same weights and images.
///
/// `ways` are flags, each with the number of ranks that they start.
fn golden(name: &str, ways: &[(&str, usize)], tolerance: f64) {
    let reference = Reference::read(name);
    let golden = &reference.golden;
    for &(flags, world) in ways {
        let run = trained(&format!(
            "{} {flags} --max-steps {} --batch-size {} --eval-limit 2000",
            reference.flags(),
            golden.loss.len(),
            golden.global_batch / world,
        ));
        assert_close(&format!("{name} with {flags}"), &run.losses(), &golden.loss, tolerance);
        let accuracy = run.summary()["test_accuracy"].as_f64().expect("accuracy");
        assert_close(&format!("{name} accuracy"), &[accuracy], &[golden.test_accuracy_first_2000], 2e-2);
    }
}

/// PyTorch's f32 and f64 results differ by 3e-7 in this trajectory.
#[test]
fn the_plain_network_follows_pytorch_at_every_world_size() {
    let ways = [("--mode single", 1), ("--nproc-per-node 2", 2), ("--nproc-per-node 4", 4)];
    golden("calm", &ways, 5e-6);
}

#[test]
fn replicas_in_one_process_follow_pytorch() {
    let [two, three] = ["--mode dp --device-ids cpu:0,cpu:1", "--mode dp --device-ids cpu:0,cpu:1,cpu:2"];
    golden("calm", &[(two, 1), (three, 1)], 5e-6);
    let synchronised = [two, three].map(|way| format!("{way} --sync-bn"));
    golden("bn", &synchronised.each_ref().map(|way| (way.as_str(), 1)), 2e-2);
}

#[test]
fn the_batch_norm_network_follows_pytorch() {
    golden("bn", &[("--batch-norm --mode single", 1)], 2e-2);
}

#[test]
fn the_synchronised_batch_norm_network_follows_pytorch_at_every_world_size() {
    let ways =
        ["--mode single", "--nproc-per-node 2", "--nproc-per-node 3"].map(|way| format!("--sync-bn {way}"));
    let ways = [(ways[0].as_str(), 1), (ways[1].as_str(), 2), (ways[2].as_str(), 3)];
    golden("bn", &ways, 2e-2);
}

#[test]
fn synchronised_batch_norm_follows_one_trajectory_with_uneven_batches() {
    // At a global batch of 12, the last step of each epoch has 5 samples or 1, so that ranks may have none.
    for samples in [29, 25] {
        let flags = format!("--sync-bn --dataset subset --train-limit {samples} --eval-limit 50 --epochs 4");
        let run = |world: usize| {
            let batch = 12 / world;
            let flags = format!("{flags} --nproc-per-node {world} --batch-size {batch}");
            trained(&format!("{flags} --lr 0.01 --dropout 0 --scale-lr none"))
        };
        let one = run(1);
        assert_eq!(one.losses().len(), 12);
        for world in [2, 3] {
            let many = run(world);
            assert_close(&format!("loss at {world} ranks"), &many.losses(), &one.losses(), 1e-4);
            let [ours, theirs] = [&many, &one].map(|run| run.column("epochs.csv", "test_loss"));
            assert_close(&format!("test loss at {world} ranks"), &ours, &theirs, 1e-4);
        }
    }
}

/// A file for each end of a new terminal: that of the user, and that of a program.
fn terminal() -> [File; 2] {
    let (mut ends, mut size) =
        ([-1; 2], libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 });
    let [user, program] = &mut ends;
    // SAFETY: all pointers are valid or null, and the descriptors are new.
    unsafe {
        assert_eq!(libc::openpty(user, program, null_mut(), null_mut(), &raw mut size), 0);
        ends.map(|end| File::from_raw_fd(end))
    }
}

#[test]
fn results_are_printed_after_the_dashboard_has_closed() {
    let ([mut user, program], run) = (terminal(), Run::new());
    let flags = "--device cpu --mode single --dataset subset --train-limit 64 --eval-limit 20 --progress tui";
    let flags = format!("{flags} --run-dir {}", run.path.display());
    let end = || program.try_clone().expect("a descriptor");
    let child = example_command("mnist_ddp", &flags).stdin(end()).stdout(end()).stderr(end()).spawn();
    drop(program);
    let mut text = Vec::new();
    // Linux reports the end of a terminal as an error.
    let _ = user.read_to_end(&mut text);
    assert!(child.expect("built").wait().expect("an exit").success());
    let text = String::from_utf8_lossy(&text);
    let (_, left) = text.rsplit_once("\x1b[?1049l").expect("the dashboard's screen closes");
    assert!(left.contains("test accuracy") && left.contains("run folder"), "{left:?}");
}
