//! Resume from a checkpoint.

use super::{SMALL, checkpointed, resume};
use crate::common::{Run, assert_close, train, trained};
use std::{fs, path::Path};

/// Every column of both tables that does not depend on time.
fn tables(run: &Run) -> Vec<Vec<f64>> {
    let steps = ["step", "epoch", "loss", "lr"].map(|column| run.column("steps.csv", column));
    let epochs = ["epoch", "train_loss", "test_loss", "test_accuracy"];
    steps.into_iter().chain(epochs.map(|column| run.column("epochs.csv", column))).collect()
}

#[test]
fn a_resumed_run_is_bit_identical_to_an_uninterrupted_one() {
    for flags in [
        "--nproc-per-node 2 --batch-size 8 --batch-norm",
        "--nproc-per-node 2 --batch-size 4 --sync-bn --grad-accum-steps 2 --warmup-epochs 1.5 --clip-grad-norm 1",
        "--mode single --batch-size 16 --batch-norm --workers 0 --warmup-epochs 1.5 --warmup-start-factor 0.1",
        // The average has BatchNorm's running statistics, too.
        "--mode single --batch-size 16 --batch-norm --ema 0.9",
        "--nproc-per-node 2 --batch-size 8 --precision bf16 --no-shuffle",
        "--nproc-per-node 2 --batch-size 8 --shard-optimizer",
        "--nproc-per-node 2 --batch-size 8 --sync-every 2 --outer-lr 0.7 --outer-momentum 0.9",
        // Burn's CPU backend has one random number generator for all replicas of a process.
        "--mode dp --device-ids cpu:0,cpu:1 --batch-size 16 --batch-norm --dropout 0",
    ] {
        let whole = checkpointed(flags);
        for (part, cut) in [("checkpoints/step-000004", 4), ("checkpoints/step-000006", 6), ("", 12)] {
            let run = whole.copied();
            fs::remove_file(run.path.join("summary.json")).expect("there is one");
            let outcome = resume(&run.path, part, flags).succeeded();
            assert!(outcome.stdout.contains(&format!("after step {cut}")), "{outcome:#?}");
            assert_eq!(run.digest(), whole.digest(), "{flags} from step {cut}");
            assert_eq!(tables(&run), tables(&whole), "{flags} from step {cut}");
            assert_eq!(run.model_bytes(), whole.model_bytes());
        }
    }
}

#[test]
fn repeating_the_command_of_a_finished_run_keeps_its_tables() {
    for end in ["--epochs 1.5", "--epochs 2", "--epochs 2 --max-steps 8"] {
        let run = Run::new();
        let flags = format!("{} {end} --mode single --batch-size 16", SMALL.replace("--epochs 2", ""));
        let flags =
            format!("--device cpu --progress plain {flags} --resume --run-dir {}", run.path.display());
        train(&flags).succeeded();
        let (finished, digest) = (tables(&run), run.digest());
        train(&flags).succeeded();
        assert_eq!((tables(&run), run.digest()), (finished, digest), "{end}");
    }
}

#[test]
fn a_different_world_size_resumes_with_the_same_samples() {
    let flags = "--dropout 0 --scale-lr none --sync-bn";
    let whole = checkpointed(&format!("{flags} --nproc-per-node 2 --batch-size 8"));
    let go_on = |world: usize, batch: usize| {
        let run = whole.copied();
        let flags = format!("{flags} --nproc-per-node {world} --batch-size {batch}");
        let outcome = resume(&run.path, "checkpoints/step-000004", &flags).succeeded();
        (run, outcome)
    };
    for world in [1, 4] {
        let (run, outcome) = go_on(world, 16 / world);
        assert!(!outcome.stderr.contains("warning"), "{outcome:#?}");
        assert_close(&format!("loss at {world} ranks"), &run.losses(), &whole.losses(), 1e-4);
        let [ours, theirs] = [&run, &whole].map(|run| run.column("epochs.csv", "test_loss"));
        assert_close(&format!("test loss at {world} ranks"), &ours, &theirs, 1e-4);
    }
    // The global batch doubles: 26 samples are left of the first epoch, then there are 90.
    let (run, outcome) = go_on(4, 8);
    assert!(outcome.stderr.contains("had 16 samples before, and have 32 now"), "{outcome:#?}");
    assert_eq!(run.column("steps.csv", "epoch"), [1., 1., 1., 1., 1., 2., 2., 2.]);
}

#[test]
fn accumulation_may_change_if_the_global_batch_stays_the_same() {
    let flags = "--nproc-per-node 2 --dropout 0";
    let whole = checkpointed(&format!("{flags} --batch-size 8"));
    let outcome = resume(&whole.path, "checkpoints/step-000004", &format!("{flags} --grad-accum-steps 2"));
    outcome.failed_with(&["--grad-accum-steps 1, not 2"]);
    let losses = whole.losses();
    let flags = format!("{flags} --batch-size 4 --grad-accum-steps 2");
    let outcome = resume(&whole.path, "checkpoints/step-000004", &flags).succeeded();
    assert!(!outcome.stderr.contains("warning"), "{outcome:#?}");
    assert_close("loss in halves of the batches", &whole.losses(), &losses, 1e-4);
}

#[test]
fn a_longer_run_resumes_where_a_shorter_one_ended() {
    let flags = "--mode single --batch-size 16";
    let whole = trained(&format!("{SMALL} {flags}"));
    for end in ["--epochs 1", "--max-steps 9", "--max-steps 6"] {
        let short = SMALL.replace("--epochs 2", "");
        let epochs = if end.starts_with("--max") { "--epochs 2" } else { "" };
        let run = trained(&format!("{short} {flags} {epochs} {end}"));
        // The run is complete, so that nothing changes.
        let (before, tables_before) = (run.summary(), tables(&run));
        let again = format!("--device cpu {short} {flags} {epochs} {end} --resume {}", run.path.display());
        train(&again).succeeded();
        assert_eq!(run.summary()["parameter_digest"], before["parameter_digest"]);
        assert_eq!(run.summary()["test_loss"], before["test_loss"]);
        assert_eq!(tables(&run), tables_before, "{end}");
        resume(&run.path, "", flags).succeeded();
        assert_eq!(run.digest(), whole.digest(), "{end}");
        assert_eq!(tables(&run), tables(&whole), "{end}");
    }
}

#[test]
fn without_a_checkpoint_a_run_starts_with_a_notice() {
    let Run { path, .. } = &Run::new();
    let flags = format!("--device cpu {SMALL} --mode single --max-steps 2");
    let run = || train(&format!("{flags} --run-dir {} --resume", path.display())).succeeded().stdout;
    assert!(run().contains("no checkpoint yet: starting from the beginning"));
    assert!(run().contains("after step 2"));
    // Without --resume the folder is protected.
    train(&format!("{flags} --run-dir {}", path.display()))
        .failed_with(&["already contains a run", "--resume"]);
}

#[test]
fn the_newest_and_the_best_checkpoints_are_kept() {
    let flags =
        "--dataset subset --train-limit 64 --eval-limit 20 --mode single --batch-size 8 --save-every 1";
    let run = trained(&format!("{flags} --keep-last 3 --epochs 2 --lr 0.01 --network lenet"));
    let folder = run.path.join("checkpoints");
    let best = fs::read_link(folder.join("best")).expect("a link");
    let mut names: Vec<String> = fs::read_dir(&folder)
        .expect("folder")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let mut wanted = vec!["best", "last", "step-000014", "step-000015", "step-000016"];
    if best == Path::new("step-000008") {
        wanted.insert(2, "step-000008");
    }
    assert_eq!(names, wanted);
    assert_eq!(fs::read_link(folder.join("last")).expect("a link"), Path::new("step-000016"));
    let losses = run.column("epochs.csv", "test_loss");
    let number = if losses[1] < losses[0] { "step-000016" } else { "step-000008" };
    assert_eq!(best, Path::new(number));
}

#[test]
fn training_stops_early_on_all_ranks_and_stays_stopped() {
    // Without learning, no epoch is better than the first.
    let flags = "--dataset subset --train-limit 32 --eval-limit 20 --epochs 9 --lr 0 --early-stop 2";
    let run = trained(&format!("{flags} --nproc-per-node 2 --batch-size 8 --monitor accuracy"));
    assert_eq!(run.column("epochs.csv", "epoch"), [1., 2., 3.]);
    let flags = format!("{flags} --nproc-per-node 2 --batch-size 8 --monitor accuracy --device cpu");
    train(&format!("{flags} --resume {}", run.path.display())).succeeded();
    assert_eq!(run.column("epochs.csv", "epoch"), [1., 2., 3.]);
    let patient = flags.replace("--early-stop 2", "--early-stop 3");
    train(&format!("{patient} --resume {}", run.path.display())).succeeded();
    assert_eq!(run.column("epochs.csv", "epoch"), [1., 2., 3., 4.]);
}

#[test]
fn matching_weights_of_another_network_are_loaded() {
    let flags =
        "--dataset subset --train-limit 32 --eval-limit 20 --mode single --batch-size 8 --max-steps 1";
    let plain = trained(&format!("{flags} --dropout 0"));
    let from = format!("--init-from {}", plain.path.join("model.bpk").display());
    let args = format!("--device cpu {flags} --batch-norm {from}");
    train(&args).failed_with(&["bn1", "missing", "--no-strict"]);
    let folder = tempfile::tempdir().expect("temporary folder");
    let args = format!("{args} --no-strict --run-dir {}", folder.path().join("run").display());
    let outcome = train(&args).succeeded();
    assert!(
        outcome.stderr.contains("--init-from: `bn1") && outcome.stderr.contains("is missing"),
        "{outcome:#?}"
    );
    assert!(!outcome.stderr.contains("conv1"), "{outcome:#?}");
    // A network of the same shape takes all weights; without learning they do not change.
    let same = trained(&format!("{flags} --lr 0 --momentum 0 {from}"));
    assert_eq!(same.digest(), plain.digest());
}

#[test]
fn resuming_with_a_different_configuration_is_rejected() {
    train("--resume").failed_with(&["--run-dir"]);
    train("--device cpu --dataset subset --train-limit 9 --mode single --resume /nowhere/at/all")
        .failed_with(&["/nowhere/at/all", "no such folder"]);
}
