//! Metrics and callbacks of a user's model: console, tables, summary, report, comparison, and early stopping.

use crate::common::{Outcome, Run, command, finish, program, run_example};
use std::{fs, path::Path};

/// Runs the example `regression`, whose metrics are `loss` and `mae`, into `folder/name`.
fn forecaster(folder: &Path, name: &str, flags: &str) -> (Outcome, Run) {
    let path = folder.join(name);
    let flags = format!("--device cpu --threads 1 --progress plain --run-dir {} {flags}", path.display());
    (run_example("regression", &flags), Run::at(path))
}

fn header(run: &Run) -> String {
    let table = fs::read_to_string(run.path.join("epochs.csv")).expect("a table");
    table.lines().next().expect("a header").to_owned()
}

#[test]
fn every_output_has_the_metrics_of_the_model() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (outcome, run) = forecaster(folder.path(), "one", "--epochs 2");
    let outcome = outcome.succeeded();
    let (loss, mae) = (run.column("epochs.csv", "test_loss"), run.column("epochs.csv", "test_mae"));
    let largest = run.column("epochs.csv", "largest error");
    assert_eq!(
        header(&run),
        "epoch,train_loss,test_loss,test_mae,valid_loss,valid_mae,seconds,largest error"
    );
    assert!(loss[1] > 0.0 && mae[1] > loss[1] && largest[1] > mae[1], "{loss:?} {mae:?} {largest:?}");
    let evaluation = format!("  test loss {:.4}  test mae {:.4}  ", loss[1], mae[1]);
    let logged = format!("largest error {:.4}\n", largest[1]);
    let result = format!("test mae      {:.6}\n", mae[1]);
    for line in [&evaluation, &logged, &result] {
        assert!(outcome.stdout.contains(line.as_str()), "{line}: {outcome:#?}");
    }
    let summary = run.summary();
    let entries = (&summary["test_loss"], &summary["test_mae"], &summary["callbacks"]["largest error"]);
    assert_eq!(entries, (&loss[1].into(), &mae[1].into(), &largest[1].into()));

    let report = fs::read_to_string(run.path.join("report.html")).expect("a report");
    for (what, value) in [("test mae", mae[1]), ("test loss", loss[1]), ("largest error", largest[1])] {
        assert!(report.contains(&format!("<b>{value:.4}</b><span>{what}</span>")), "{what}: {report}");
    }
    for chart in ["Mae", "largest error"] {
        assert!(report.contains(&format!("aria-label=\"{chart}\"")), "{chart}");
    }
    assert!(run.path.join("curves/mae.svg").exists() && run.path.join("curves/largest_error.svg").exists());
    for text in [&outcome.stdout, &report, &header(&run), &summary.to_string()] {
        assert!(!text.to_lowercase().contains("accuracy"), "{text}");
    }

    // One rank has the same metrics, and a comparison of both runs has them.
    let (single, one) =
        forecaster(folder.path(), "two", "--mode single --batch-size 128 --lr 0.1 --epochs 2");
    single.succeeded();
    assert!((one.column("epochs.csv", "largest error")[1] - largest[1]).abs() < 1e-3);
    let [a, b, page] = ["one", "two", "page.html"].map(|name| folder.path().join(name).display().to_string());
    let compare = command(&program(), &["compare", &a, &b, "--output", &page]).spawn();
    finish(compare.expect("the program was built")).succeeded();
    let page = fs::read_to_string(page).expect("a page");
    let columns =
        "<th>best loss</th><th>mae</th><th>best mae</th><th>largest error</th><th>samples per second</th>";
    assert!(page.contains(columns) && !page.contains("ccuracy"), "{page}");
    assert!(page.contains("Evaluation: Mae, by time") && !page.contains("best largest error"), "{page}");
}

#[test]
fn a_test_set_at_the_end_has_the_metrics_and_the_callbacks() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (outcome, run) = forecaster(folder.path(), "run", "--epochs 2 --valid-split 0.2");
    let outcome = outcome.succeeded();
    assert_eq!(header(&run), "epoch,train_loss,test_loss,test_mae,valid_loss,valid_mae,seconds");
    assert_eq!(outcome.stdout.matches("largest error").count(), 1, "{outcome:#?}");
    let summary = run.summary();
    assert_eq!(summary["valid_mae"], run.column("epochs.csv", "valid_mae")[1]);
    assert!(
        summary["test_mae"].is_number() && summary["callbacks"]["largest error"].is_number(),
        "{summary}"
    );
    let report = fs::read_to_string(run.path.join("report.html")).expect("a report");
    for tile in ["test mae", "validation mae", "largest error"] {
        assert!(report.contains(&format!("<span>{tile}</span>")), "{tile}");
    }
}

#[test]
fn early_stopping_follows_a_metric_of_the_model_and_says_so() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let flags = "--epochs 5 --lr 0 --early-stop 2 --monitor mae";
    let (outcome, run) = forecaster(folder.path(), "run", flags);
    let outcome = outcome.succeeded();
    let mae = run.column("epochs.csv", "test_mae");
    assert_eq!(mae.len(), 3);
    let message = "stopped early: test mae has not improved for 2 epoch(s): the best is";
    assert!(outcome.stdout.contains(&format!("{message} {:.4} in epoch 1\n", mae[0])), "{outcome:#?}");
    let (outcome, run) = forecaster(folder.path(), "other", "--monitor nonsense");
    outcome.failed_with(&["--monitor nonsense", "metrics are loss, mae"]);
    assert!(!run.path.exists());
    let (outcome, _) = forecaster(folder.path(), "other", "--monitor accuracy");
    outcome.failed_with(&["--monitor accuracy", "metrics are loss, mae"]);
}
