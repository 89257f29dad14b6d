//! Metrics and callbacks of a user's model: console, tables, summary, report, comparison, and early stopping.

use crate::common::{Outcome, Run, command, finish, program, run_example};
use std::fs;

/// Runs the example `regression`, whose metrics are `loss` and `mae`.
pub fn forecaster(run: &Run, flags: &str) -> Outcome {
    let path = run.path.display();
    run_example("regression", &format!("--device cpu --threads 1 --progress plain --run-dir {path} {flags}"))
}

/// A completed run of the example `regression`.
pub fn forecast(flags: &str) -> Run {
    let run = Run::new();
    forecaster(&run, flags).succeeded();
    run
}

/// The rates of the epochs of a run that has 8 steps per epoch.
fn rates(run: &Run) -> Vec<f64> {
    let rates = run.column("steps.csv", "lr");
    assert!(rates.chunks(8).all(|epoch| epoch.iter().all(|lr| *lr == epoch[0])), "{rates:?}");
    rates.into_iter().step_by(8).collect()
}

#[test]
fn the_rate_falls_on_a_plateau_also_after_a_resume() {
    let run = Run::new();
    // Too small a rate to change the weights.
    let flags = "--lr 1e-30 --scale-lr none --no-shuffle --reduce-lr-on-plateau 0.5:2";
    let outcome = forecaster(&run, &format!("{flags} --epochs 4")).succeeded();
    assert!(outcome.stdout.contains("learning rate x 0.5 after epoch 3\n"));
    forecaster(&run, &format!("{flags} --epochs 7 --resume")).succeeded();
    assert_eq!(rates(&run), [1e-30, 1e-30, 1e-30, 5e-31, 5e-31, 2.5e-31, 2.5e-31]);
    let outcome = forecaster(&Run::new(), "--reduce-lr-on-plateau 2:3");
    assert!(outcome.stderr.contains("expected FACTOR:PATIENCE"), "{outcome:?}");
}

fn header(run: &Run) -> String {
    let table = fs::read_to_string(run.path.join("epochs.csv")).expect("a table");
    table.lines().next().expect("a header").to_owned()
}

#[test]
fn every_output_has_the_metrics_of_the_model() {
    let run = Run::new();
    let outcome = forecaster(&run, "--epochs 2").succeeded();
    let (loss, mae) = (run.column("epochs.csv", "test_loss"), run.column("epochs.csv", "test_mae"));
    let largest = run.column("epochs.csv", "test_max_error");
    assert_eq!(
        header(&run),
        "epoch,train_loss,train_mae,test_loss,test_mae,test_max_error,valid_loss,valid_mae,valid_max_error,seconds"
    );
    assert!(loss[1] > 0.0 && mae[1] > loss[1] && largest[1] > mae[1], "{loss:?} {mae:?} {largest:?}");
    let [l, m, x] = [loss[1], mae[1], largest[1]];
    let evaluation = format!("  test loss {l:.4}  test mae {m:.4} m  test max_error {x:.4} m  ");
    let results = format!("test mae      {m:.6} m\ntest max_error {x:.6} m\n");
    for line in [&evaluation, &results] {
        assert!(outcome.stdout.contains(line.as_str()), "{line}: {outcome:#?}");
    }
    let summary = run.summary();
    let entries = (&summary["test_loss"], &summary["test_mae"], &summary["test_max_error"]);
    assert_eq!(entries, (&loss[1].into(), &mae[1].into(), &largest[1].into()));
    // The mean of an epoch weights its steps by their samples: 7 of 128 and one of 104 over both ranks.
    let (steps, means) = (run.column("steps.csv", "mae"), run.column("epochs.csv", "train_mae"));
    let mean = (128.0 * steps[..7].iter().sum::<f64>() + 104.0 * steps[7]) / 1000.0;
    assert!((mean - means[0]).abs() < 1e-9, "{steps:?} {means:?}");

    let report = fs::read_to_string(run.path.join("report.html")).expect("a report");
    for (what, value, unit) in [("mae", m, " m"), ("loss", l, ""), ("max_error", x, " m")] {
        let tile = format!("<b>{value:.4}{unit}</b><span>test {what}</span>");
        assert!(report.contains(&tile), "{what}: {report}");
    }
    for chart in ["Mae in m", "Max_error in m"] {
        assert!(report.contains(&format!("aria-label=\"{chart}\"")), "{chart}");
    }
    assert!(run.path.join("curves/mae.svg").exists() && run.path.join("curves/max_error.svg").exists());
    for text in [&outcome.stdout, &report, &header(&run), &summary.to_string()] {
        assert!(!text.to_lowercase().contains("accuracy"), "{text}");
    }

    // One rank has the same metrics, and a comparison of both runs has them.
    let one = forecast("--mode single --batch-size 128 --lr 0.1 --epochs 2");
    assert!((one.column("epochs.csv", "test_max_error")[1] - largest[1]).abs() < 1e-3);
    let paths = [run.path.clone(), one.path.clone(), run.path.join("page.html")];
    let [a, b, page] = paths.map(|path| path.display().to_string());
    let compare = command(&program(), &["compare", &a, &b, "--output", &page]).spawn();
    finish(compare.expect("the program was built")).succeeded();
    let page = fs::read_to_string(page).expect("a page");
    let columns = "<th>best mae</th><th>max_error</th><th>best max_error</th><th>samples per second</th>";
    assert!(page.contains(columns) && !page.contains("ccuracy"), "{page}");
    assert!(page.contains("Evaluation: Mae in m, by time"), "{page}");
}

#[test]
fn utilisation_is_the_share_of_the_peak_that_the_products_take() {
    let run = Run::new();
    let flags = "--device cpu --threads 1 --dataset subset --eval-limit 64 --max-steps 6 --progress plain";
    let ddp = format!("{flags} --nproc-per-node 2 --peak-tflops 0.25 --run-dir {}", run.path.display());
    let outcome = run_example("mnist_ddp", &ddp).succeeded();
    // Forward and backward of the network of pytorch/examples: 23.98 million operations in forward.
    let seconds = run.column("ranks.csv", "seconds")[0];
    let expected = 71_954_688.0 * (6.0 * 2.0 * 64.0) / seconds / (2.0 * 0.25e12);
    let utilisation = run.column("epochs.csv", "utilisation")[0];
    assert!((utilisation / expected - 1.0).abs() < 0.02, "{utilisation} {expected} {outcome:#?}");
    let line = format!("\nutilisation {:.2} %\n", 100.0 * utilisation);
    assert!(outcome.stdout.contains(&line), "{line} {outcome:#?}");
    let page = fs::read_to_string(run.path.join("report.html")).expect("a report");
    assert!(page.contains("<span>utilisation</span>"), "{page}");
    let config = run.json("config.json");
    assert_eq!((&config["peak_tflops"], &config["flops_per_sample"]), (&0.25.into(), &71_954_688.0.into()));

    let plain = Run::new();
    let flags = format!("{flags} --mode single --run-dir {}", plain.path.display());
    let outcome = run_example("mnist_ddp", &flags).succeeded();
    assert!(!outcome.stdout.contains("utilisation") && plain.json("config.json")["peak_tflops"].is_null());
    let refused = forecaster(&Run::new(), "--peak-tflops 1");
    refused.failed_with(&["--peak-tflops: this program does not name the FLOPs of a sample"]);
    assert!(forecaster(&Run::new(), "--peak-tflops 0").stderr.contains("expected a number above 0"));
}

#[test]
fn a_test_set_at_the_end_has_the_metrics_and_the_callbacks() {
    let run = Run::new();
    let outcome = forecaster(&run, "--epochs 2 --valid-split 0.2").succeeded();
    assert_eq!(outcome.stdout.matches("valid max_error").count(), 2, "{outcome:#?}");
    let summary = run.summary();
    for metric in ["mae", "max_error"] {
        let valid = format!("valid_{metric}");
        assert_eq!(summary[&valid], run.column("epochs.csv", &valid)[1]);
        assert!(summary[format!("test_{metric}")].is_number(), "{summary}");
    }
    let report = fs::read_to_string(run.path.join("report.html")).expect("a report");
    for tile in ["test mae", "validation mae", "test max_error", "validation max_error"] {
        assert!(report.contains(&format!("<span>{tile}</span>")), "{tile}");
    }
}

#[test]
fn early_stopping_follows_any_metric_and_names_it() {
    // Without shuffling, a rate of 0 gives equal training means, too.
    for (monitor, column, name) in [
        ("mae", "test_mae", "test mae"),
        ("max_error", "test_max_error", "test max_error"),
        ("train_mae", "train_mae", "train mae"),
    ] {
        let flags = format!("--epochs 5 --lr 0 --no-shuffle --early-stop 2 --monitor {monitor}");
        let run = Run::new();
        let outcome = forecaster(&run, &flags).succeeded();
        let values = run.column("epochs.csv", column);
        assert_eq!(values.len(), 3);
        let message = format!("stopped early: {name} has not improved for 2 epoch(s): the best is");
        let message = format!("{message} {:.4} m in epoch 1\n", values[0]);
        assert!(outcome.stdout.contains(&message), "{message} {outcome:#?}");
    }
    for unknown in ["nonsense", "accuracy"] {
        let run = Run::new();
        let outcome = forecaster(&run, &format!("--monitor {unknown}"));
        let names = "metrics are loss, mae, max_error, train_loss, train_mae";
        outcome.failed_with(&[&format!("--monitor {unknown}"), names]);
        assert!(!run.path.exists());
    }
}
