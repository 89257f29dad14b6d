//! The flags that recipes use, and the recipes.

use crate::common::{
    self, Outcome, Run, assert_close, example_command, finish,
    launched::{signal, wait_until},
    train, trained,
};
use std::fs;

/// Six steps per epoch at a global batch of 16.
const SMALL: &str = "--dataset subset --train-limit 96 --eval-limit 20";
const ALL: &str = "--lr-schedule one-cycle:0.25 --nesterov --weight-decay 0.0005 --label-smoothing 0.1 \
                   --augment shift:1,rotate:5,zoom:4";

#[test]
fn flags_are_recorded_and_the_rate_follows_the_schedule() {
    let run = trained(&format!("{SMALL} {ALL} --epochs 1.5 --nproc-per-node 2 --batch-size 8 --lr 0.05"));
    let config = run.json("config.json");
    for (key, value) in [
        ("lr_schedule", "one-cycle:0.25".into()),
        ("nesterov", true.into()),
        ("weight_decay", 0.0005.into()),
        ("label_smoothing", 0.1.into()),
        ("augment", "shift:1,rotate:5,zoom:4".into()),
        ("epochs", serde_json::json!(1.5)),
    ] {
        assert_eq!(config[key], value, "{key}");
    }
    assert_eq!(run.column("steps.csv", "epoch"), [1., 1., 1., 1., 1., 1., 2., 2., 2.]);
    // Reference: torch's OneCycleLR(optimizer, 0.1, total_steps=9, pct_start=0.25, cycle_momentum=False).
    let wanted = [
        0.004,
        0.09083281572999748,
        0.09698464310077128,
        0.08431214464510911,
        0.06434030427490797,
        0.04131782584628902,
        0.020142389846579047,
        0.005318746710357457,
        4e-07,
    ];
    assert_close("rates", &run.column("steps.csv", "lr"), &wanted, 1e-9);
}

#[test]
fn a_resumed_run_with_a_schedule_is_bit_identical() {
    for length in ["--epochs 1.5", "--epochs 2 --max-steps 9", "--epochs 2"] {
        let network = "--network lenet --batch-norm";
        let flags = format!("{SMALL} {ALL} {length} --nproc-per-node 2 --batch-size 8 {network}");
        let run = trained(&format!("{flags} --save-every 2 --keep-last 100"));
        let (digest, rates, losses) = (run.digest(), run.column("steps.csv", "lr"), run.losses());
        for step in ["000004", "000006", "000008"] {
            let from = run.path.join(format!("checkpoints/step-{step}"));
            let go_on = |flags: &str| {
                train(&format!(
                    "--device cpu {flags} --save-every 2 --keep-last 100 --resume {}",
                    from.display()
                ))
            };
            // The schedule depends on the length of the whole run.
            let other = flags.replace(length, "--epochs 3");
            go_on(&other).failed_with(&["made with --epochs", "not 3"]);
            go_on(&flags.replace("--nesterov", "")).failed_with(&["--nesterov true, not false"]);
            go_on(&flags.replace("shift:1", "shift:2")).failed_with(&["--augment"]);
            go_on(&flags).succeeded();
            assert_eq!(run.digest(), digest, "{length} from {step}");
            assert_eq!((run.column("steps.csv", "lr"), run.losses()), (rates.clone(), losses.clone()));
        }
    }
}

#[test]
fn a_run_resumes_at_another_world_size_with_the_next_sample() {
    let flags = format!("{SMALL} --lr-schedule cosine --epochs 1.5 --batch-size 4 --scale-lr none");
    let run = trained(&format!("{flags} --nproc-per-node 2 --save-every 8 --keep-last 9"));
    assert_eq!(run.losses().len(), 18);
    let from = run.path.join("checkpoints/step-000008");
    train(&format!("--device cpu {flags} --nproc-per-node 4 --resume {}", from.display())).succeeded();
    // 64 samples in steps of 8, then 32 and 48 in steps of 16.
    assert_eq!(run.losses().len(), 8 + 2 + 3);
    let rates = run.column("steps.csv", "lr");
    assert!(rates.windows(2).all(|pair| pair[1] < pair[0]), "{rates:?}");
    assert!(rates[12] < 0.002, "{rates:?}");
}

#[test]
fn augmentation_does_not_depend_on_the_world_size() {
    let run = |augment: &str, world: usize, lr: f64| {
        let batch = 16 / world;
        let world = format!("--nproc-per-node {world} --batch-size {batch} --lr {lr} --scale-lr none");
        trained(&format!("{SMALL} --mode ddp --dropout 0 --epochs 2 --augment {augment} {world}"))
    };
    let how = "shift,rotate,zoom";
    let (one, two) = (run(how, 1, 0.01), run(how, 2, 0.01));
    assert_close("losses", &two.losses(), &one.losses(), 1e-4);
    // Without learning only the training images differ from epoch to epoch, and not those of the test.
    let (plain, moved) = (run("none", 2, 0.0), run(how, 2, 0.0));
    let [plain_means, means] = [&plain, &moved].map(|run| run.column("epochs.csv", "train_loss"));
    assert!((means[0] - plain_means[0]).abs() > 1e-4 && (means[0] - means[1]).abs() > 1e-6, "{means:?}");
    assert!((plain_means[0] - plain_means[1]).abs() < 1e-5, "{plain_means:?}");
    let [plain, moved] = [&plain, &moved].map(|run| run.column("epochs.csv", "test_loss"));
    assert_eq!(plain, moved);
}

#[test]
fn the_command_line_overrides_a_recipe_and_repeats_with_it() {
    let run = trained(&format!(
        "{SMALL} --recipe best --mode single --epochs 1 --batch-size 16 --batch-norm=false"
    ));
    let config = run.json("config.json");
    assert_eq!((&config["recipe"], &config["nesterov"]), (&"best".into(), &true.into()));
    assert_eq!((&config["epochs"], &config["batch_norm"]), (&1.into(), &false.into()));
    assert_ne!(config["augment"], "none");
    let again = Run::new();
    train(&format!("--config {} --run-dir {}", run.path.display(), again.path.display())).succeeded();
    assert_eq!(again.digest(), run.digest());
}

#[test]
fn a_recipe_holds_at_every_world_size_and_in_dp_mode() {
    for (world, steps) in
        [("--mode ddp --nproc-per-node 2 --batch-size 8", 6), ("--mode dp --batch-size 8", 12)]
    {
        let run = trained(&format!("{SMALL} --recipe fast --epochs 1 {world}"));
        assert_eq!(run.losses().len(), steps);
        assert_eq!(run.json("config.json")["label_smoothing"], 0.05);
    }
}

#[test]
fn the_smaller_network_trains_in_every_mode_and_is_recognised_by_its_weights() {
    let flags = format!("{SMALL} --recipe lenet --lr 0.02 --max-steps 6");
    let [single, ddp, dp] = [
        "--mode single --batch-size 16 --scale-lr none",
        "--mode ddp --nproc-per-node 2 --batch-size 8 --scale-lr none",
        "--mode dp --device-ids cpu:0,cpu:1 --batch-size 16 --scale-lr none",
    ]
    .map(|mode| trained(&format!("{flags} {mode}")));
    assert_eq!(single.json("config.json")["network"], "lenet");
    assert_close("ddp", &ddp.losses(), &single.losses(), 1e-5);
    assert_close("dp", &dp.losses(), &single.losses(), 1e-5);
    // The trained file is smaller than that of the default network, 4.8 MB.
    let folder = tempfile::tempdir().expect("temporary folder");
    let exported = folder.path().join("lenet.safetensors");
    let command = |arguments: &[&str]| {
        let child = common::command(&common::mnist(), arguments).spawn().expect("the program was built");
        finish(child).succeeded().stdout
    };
    let [run, file] = [&single.path, &exported].map(|path| path.to_str().expect("UTF-8"));
    assert!(command(&["weights", "export", run, file]).contains("8 tensors, 80202 parameters"));
    let picture = format!("{}/tests/library/pictures_and_weights/turned.jpg", env!("CARGO_MANIFEST_DIR"));
    let answers = [run, file].map(|model| command(&["predict", "--model", model, &picture]));
    assert_eq!(answers[0], answers[1]);
    let resume = format!("--device cpu {SMALL} --recipe lenet --network cnn --max-steps 8 --resume {run}");
    train(&resume).failed_with(&["--network", "lenet", "cnn"]);
}

#[test]
fn invalid_values_are_named() {
    for (flags, words) in [
        ("--recipe slow", ["--recipe", "fast, lenet, best"]),
        ("--network resnet", ["--network", "cnn, lenet"]),
        ("--lr-schedule linear", ["--lr-schedule", "one-cycle"]),
        ("--lr-schedule one-cycle:2", ["--lr-schedule", "0 to 1"]),
        ("--augment flip", ["--augment", "shift:PIXELS"]),
        ("--epochs 0", ["--epochs", "above 0"]),
        ("--weight-decay=-1", ["--weight-decay", "from 0"]),
        ("--label-smoothing 1", ["--label-smoothing", "below 1"]),
        ("--lr-schedule one-cycle --warmup-epochs 1", ["--warmup-epochs", "one-cycle"]),
        ("--nesterov --momentum 0", ["--nesterov", "--momentum"]),
        ("--warmup-epochs 1 --warmup-start-factor 0", ["--warmup-start-factor", "above 0"]),
        ("--warmup-epochs 1 --warmup-start-factor 1.5", ["--warmup-start-factor", "at most 1"]),
        ("--warmup-start-factor 0.1", ["--warmup-start-factor", "--warmup-epochs"]),
    ] {
        let outcome = train(&format!("--device cpu --mode single {SMALL} {flags}"));
        assert_ne!(outcome.code, Some(0), "{flags}");
        for word in words {
            assert!(outcome.stderr.contains(word), "{flags}: {}", outcome.stderr);
        }
    }
}

/// Runs a learning-rate range test.
fn find_lr(run: &Run, flags: &str) -> Outcome {
    let flags = format!("--device cpu --progress plain --dataset subset --eval-limit 20 --dropout 0 {flags}");
    train(&format!("{flags} --run-dir {}", run.path.display()))
}

/// The line that suggests a rate.
fn suggestion(outcome: &Outcome) -> &str {
    let line = outcome.stdout.lines().find(|line| line.starts_with("suggested --lr "));
    line.unwrap_or_else(|| panic!("no suggestion: {outcome:#?}"))
}

#[test]
fn every_mode_finds_the_same_learning_rate() {
    let flags = "--train-limit 480 --scale-lr none --find-lr=1e-5..100 --find-lr-steps 60";
    let tested = |mode: &str| {
        let run = Run::new();
        let outcome = find_lr(&run, &format!("{flags} {mode}")).succeeded();
        // The test needs two epochs, and nothing is left that could be taken for a trained model.
        let files = fs::read_dir(&run.path).expect("the folder").count();
        assert_eq!(files, 2, "lr_find.csv and lr_find.svg");
        assert!(outcome.stdout.contains("until the loss diverged"), "{outcome:#?}");
        let columns = ["lr", "loss", "smoothed_loss"].map(|name| run.column("lr_find.csv", name));
        (columns, suggestion(&outcome).to_owned())
    };
    let ([rates, losses, _], suggested) = tested("--mode single --batch-size 16");
    assert!((rates[0] - 1e-5).abs() < 1e-15 && rates.is_sorted() && losses.len() < 60);
    for (name, mode) in [
        ("two", "--nproc-per-node 2 --batch-size 8"),
        ("four", "--nproc-per-node 4 --batch-size 4"),
        ("accumulated", "--nproc-per-node 2 --batch-size 4 --grad-accum-steps 2"),
        ("dp", "--mode dp --device-ids cpu:0,cpu:1 --batch-size 16"),
    ] {
        let (columns, line) = tested(mode);
        // Rounding grows when the loss diverges.
        let part = losses.len() * 2 / 3;
        assert_close(name, &columns[1][..part], &losses[..part], 1e-3);
        assert_eq!(line, suggested, "{name}");
    }
}

#[test]
fn the_range_of_a_test_is_one_of_the_flag() {
    let flags = "--train-limit 96 --nproc-per-node 2 --batch-size 8 --find-lr-steps 10";
    let tested = |more: &str| {
        let run = Run::new();
        find_lr(&run, &format!("{flags} {more}")).succeeded();
        ["lr", "loss"].map(|name| run.column("lr_find.csv", name))
    };
    // Linear scaling doubles the rate of two ranks.
    let [scaled, losses] = tested("--find-lr=1e-3..0.1");
    let [rates, same] = tested("--scale-lr none --find-lr=2e-3..0.2");
    assert_eq!(losses, same);
    let doubled: Vec<f64> = scaled.iter().map(|rate| 2.0 * rate).collect();
    assert_close("rates", &doubled, &rates, 1e-12);
}

#[test]
fn a_range_test_leaves_other_runs_alone() {
    let (run, bad_run) = (Run::new(), Run::new());
    let flags = "--train-limit 96 --mode single --batch-size 16 --find-lr-steps 10";
    // Rates at which nothing is learned.
    let outcome = find_lr(&run, &format!("{flags} --find-lr=1e-12..1e-11")).succeeded();
    assert!(outcome.stderr.contains("the loss does not fall at these rates"), "{outcome:#?}");
    // The folder may be used for the run itself, which a second test does not touch.
    find_lr(&run, "--train-limit 96 --mode single --max-steps 2").succeeded();
    let before = run.json("config.json");
    find_lr(&run, &format!("{flags} --find-lr")).failed_with(&["--run-dir", "already contains a run"]);
    assert_eq!(run.json("config.json"), before);
    for (bad, words) in [
        ("--find-lr=1..1e-3", "0 < MIN < MAX"),
        ("--find-lr=0..1", "0 < MIN < MAX"),
        ("--find-lr --find-lr-steps 9", "from 10 to 1000000"),
        ("--find-lr --find-lr-steps 18446744073709551615", "from 10 to 1000000"),
        ("--find-lr --resume", "cannot be used with"),
    ] {
        let outcome = find_lr(&bad_run, bad);
        assert!(outcome.code == Some(2) && outcome.stderr.contains(words), "{bad}: {outcome:#?}");
    }
    assert!(!bad_run.path.exists());
}

#[test]
fn an_interrupted_range_test_leaves_other_files_alone() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let names = ["steps.csv", "epochs.csv", "ranks.csv", "mlflow.json"];
    let file = |name: &str| folder.path().join(name);
    names.iter().for_each(|name| fs::write(file(name), "a user's file").expect("written"));
    let flags = "--device cpu --mode single --dataset subset --find-lr=1e-9..1e-8 --find-lr-steps 1000000";
    let mut program = example_command("mnist_ddp", flags);
    let child = program.arg("--run-dir").arg(folder.path()).spawn().expect("the program was built");
    // Its start needs less processor time.
    let ticks = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    let ticks = || ticks().split(' ').nth(13).and_then(|field| field.parse::<u64>().ok());
    wait_until("it trains", || ticks().is_none_or(|ticks| ticks > 300));
    signal(child.id(), libc::SIGTERM);
    assert_eq!(finish(child).code, Some(128 + libc::SIGTERM));
    assert!(names.iter().all(|name| file(name).is_file()), "a file was removed");
}
