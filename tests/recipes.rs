//! The flags that recipes use, and the recipes.

mod common;
use common::{Run, assert_close, train, trained};

/// Six steps per epoch at a global batch of 16.
const SMALL: &str = "--dataset digits --train-limit 96 --eval-limit 20";
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
        let flags = format!("{SMALL} {ALL} {length} --nproc-per-node 2 --batch-size 8 --batch-norm");
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
            let again = Run::at(run.path.clone());
            assert_eq!(again.digest(), digest, "{length} from {step}");
            assert_eq!((again.column("steps.csv", "lr"), again.losses()), (rates.clone(), losses.clone()));
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
    let folder = tempfile::tempdir().expect("temporary folder");
    let again = folder.path().join("again");
    train(&format!("--config {} --run-dir {}", run.path.display(), again.display())).succeeded();
    assert_eq!(Run::at(again).digest(), run.digest());
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
fn invalid_values_are_named() {
    for (flags, words) in [
        ("--recipe slow", ["--recipe", "fast, best"]),
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
