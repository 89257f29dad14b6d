//! Pages about runs: `report.html`, its curves, `burn-ddp report` and `burn-ddp compare`.

use crate::common::{self, Outcome, Run, command, finish, program, trained};
use std::{fs, path::Path};

const RUN: &str = "--dataset subset --train-limit 128 --eval-limit 101 --batch-size 16 --threads 1";

fn burn_ddp(args: &[&str]) -> Outcome {
    finish(command(&program(), args).spawn().expect("the program was built"))
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn name(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Panics unless every element is closed in order.
fn assert_well_formed(svg: &str) {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a whole tag");
        match tag.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed), "{svg}"),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split(' ').next().expect("a name")),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_run_writes_a_self_contained_page() {
    let run = trained(&format!("{RUN} --nproc-per-node 2 --epochs 2"));
    let page = text(&run.path.join("report.html"));
    for outside in ["http:", "https:", "src=", "<script", "<link", "@import"] {
        assert!(!page.contains(outside), "it needs {outside}");
    }
    let accuracy = run.summary()["test_accuracy"].as_f64().expect("an accuracy");
    let tile = format!("<b>{:.2} %</b><span>test accuracy</span>", 100.0 * accuracy);
    for part in [
        tile.as_str(),
        "width=device-width",
        "rank 0",
        "rank 1",
        "waiting for gradients",
        "Confusion matrix",
        "data:image/png;base64,iVBOR",
        "<span>batch_size</span><b>16</b>",
        "<span>dropout</span><b>0.25, 0.5</b>",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert_eq!(page.matches("<svg").count(), 4);
    let wrong = run.column("misclassified.csv", "test_image");
    assert!(!wrong.is_empty() && wrong.len() <= 24, "{wrong:?}");
    assert_eq!(page.matches("<figure>").count(), wrong.len());
    for curve in ["loss", "accuracy", "throughput", "learning_rate"] {
        let svg = text(&run.path.join("curves").join(format!("{curve}.svg")));
        assert!(svg.starts_with("<svg xmlns="), "{svg}");
        assert_well_formed(&svg);
    }
}

#[test]
fn the_accuracy_axis_ends_at_100_percent() {
    let run = trained(&format!("{RUN} --mode single --max-steps 1"));
    let epochs = run.path.join("epochs.csv");
    let header = text(&epochs).lines().next().expect("a header").to_owned();
    for accuracy in ["0.994", "1"] {
        fs::write(&epochs, format!("{header}\n1,0.5,{accuracy},0.1,{accuracy},,,2.5\n")).expect("written");
        burn_ddp(&["report", name(&run.path)]).succeeded();
        let svg = text(&run.path.join("curves/accuracy.svg"));
        assert!(svg.contains(">100</text>") && svg.contains(">90</text>"), "{svg}");
        for beyond in [">105</text>", ">110</text>"] {
            assert!(!svg.contains(beyond), "{svg}");
        }
    }
}

#[test]
fn each_rank_reports_its_time_by_stage() {
    let run = trained(&format!("{RUN} --nproc-per-node 3 --epochs 2"));
    let column = |name| run.column("ranks.csv", name);
    assert_eq!(column("epoch"), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    assert_eq!(column("rank"), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    let waits = column("gradient_wait_seconds").into_iter().zip(column("data_wait_seconds"));
    for ((gradients, data), all) in waits.zip(column("seconds")) {
        assert!(gradients > 0.0 && data > 0.0 && gradients + data < all, "{gradients} {data} {all}");
    }
    let alone = trained(&format!("{RUN} --mode single --max-steps 2"));
    assert_eq!(alone.column("ranks.csv", "gradient_wait_seconds"), [0.0]);
}

#[test]
fn the_worst_misclassifications_are_equal_at_any_world_size() {
    // With a learning rate of 0 all worlds evaluate the same model.
    let worlds = ["--mode single", "--nproc-per-node 3", "--mode dp --device-ids cpu:0,cpu:1"];
    let found = worlds.map(|world| {
        let run = trained(&format!("{RUN} --lr 0 --max-steps 1 {world}"));
        let columns = ["test_image", "label", "answer"].map(|name| run.column("misclassified.csv", name));
        let sure = run.column("misclassified.csv", "label_probability");
        assert!(sure.is_sorted(), "the worst first: {sure:?}");
        assert!(run.path.join("misclassified.png").exists());
        (columns, sure)
    });
    let (columns, sure) = &found[0];
    assert_eq!(columns[0].len(), 24);
    for (others, sure_too) in &found[1..] {
        assert_eq!(others, columns);
        common::assert_close("probabilities", sure_too, sure, 1e-6);
    }
}

#[test]
fn killed_and_resumed_runs_have_a_report() {
    let run = trained(&format!("{RUN} --mode single --max-steps 4 --save-every 2"));
    let first = text(&run.path.join("curves/loss.svg"));
    let resume = format!("--resume {} --epochs 2", run.path.join("checkpoints/step-000002").display());
    common::train(&format!("--device cpu --progress plain {RUN} --mode single {resume}")).succeeded();
    assert_ne!(text(&run.path.join("curves/loss.svg")), first, "redrawn");
    let page = text(&run.path.join("report.html"));
    assert!(page.contains("<b>16</b><span>optimizer steps</span>"), "training continues after step 2");
    // A killed run has no summary, and an incomplete row.
    fs::remove_file(run.path.join("summary.json")).expect("it was there");
    let steps = text(&run.path.join("steps.csv"));
    fs::write(run.path.join("steps.csv"), steps + "17,3,0.").expect("written");
    let said = burn_ddp(&["report", name(&run.path)]).succeeded().stdout;
    assert!(said.contains("report.html"), "{said}");
    assert!(text(&run.path.join("report.html")).contains("<b>16</b><span>optimizer steps</span>"));
}

fn two_runs() -> [Run; 2] {
    ["--lr 0.02", "--lr 0.04 --batch-norm"].map(|flags| trained(&format!("{RUN} --mode single {flags}")))
}

#[test]
fn runs_are_compared_on_one_page() {
    let runs = two_runs();
    let folder = tempfile::tempdir().expect("temporary folder");
    let output = folder.path().join("page.html");
    let args = ["compare", name(&runs[0].path), name(&runs[1].path), "--output", name(&output)];
    assert!(burn_ddp(&args).succeeded().stdout.contains("page.html"));
    let page = text(&output);
    assert_eq!(page.matches("<svg").count(), 5);
    for outside in ["http:", "https:", "src=", "<script", "<link"] {
        assert!(!page.contains(outside), "it needs {outside}");
    }
    // Both folders are called `run`; the page distinguishes them by their paths.
    for run in &runs {
        assert!(page.contains(name(&run.path)), "{}", run.path.display());
    }
    assert!(page.contains("<tr><th>lr</th><td>0.02</td><td>0.04</td></tr>"), "{page}");
    assert!(page.contains("<tr><th>batch_norm</th><td>false</td><td>true</td></tr>"), "{page}");
    assert!(!page.contains("<tr><th>seed</th>"), "it is the same in both");
}

#[test]
fn invalid_and_damaged_runs_are_named_with_the_position() {
    let runs = two_runs();
    let [first, second] = [name(&runs[0].path), name(&runs[1].path)];
    let folder = tempfile::tempdir().expect("temporary folder");
    let output = folder.path().join("page.html");
    let compare = |other: &str| burn_ddp(&["compare", first, other, "--output", name(&output)]);
    compare(name(folder.path())).failed_with(&[name(folder.path()), "not a run folder", "config.json"]);
    compare(first).failed_with(&["given twice"]);
    let epochs = text(&runs[1].path.join("epochs.csv"));
    fs::write(runs[1].path.join("epochs.csv"), epochs + "2,0.5,0.5,what,0.5,,,1\n").expect("written");
    for damaged in [compare(second), burn_ddp(&["report", second])] {
        damaged.failed_with(&["epochs.csv, line 3", "test_loss", "repair"]);
    }
    assert!(!output.exists(), "nothing was written");
    fs::write(runs[0].path.join("confusion_matrix.csv"), format!("label,0,1\n0,{0},{0}\n1,2,3\n", u64::MAX))
        .expect("written");
    burn_ddp(&["report", first]).succeeded();
    let nowhere = folder.path().join("none/page.html");
    fs::write(runs[1].path.join("epochs.csv"), "").expect("written");
    burn_ddp(&["compare", first, second, "--output", name(&nowhere)]).failed_with(&["none/page.html"]);
}
