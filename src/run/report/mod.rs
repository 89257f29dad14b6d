//! HTML reports: charts and tables of one run, and a comparison of several runs.
//!
//! Each page is a self-contained file.

mod chart;
mod compare;
mod curves;
mod page;
mod run;
mod scale;
mod sections;

pub use chart::{Chart, Series};
pub use compare::{CompareArgs, compare};
pub use run::Run;
pub use scale::Axis;

use crate::process::atomic_file;
use anyhow::{Context, Result};
use collective::metric::MetricInfo;
use page::{duration, escape, page, tiles};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Writes `report.html` and the folder `curves` of a run, and returns the path of the page.
///
/// # Errors
/// If `folder` is not a run, a file in it is damaged, or the page cannot be written.
pub fn write(folder: &Path) -> Result<PathBuf> {
    let run = Run::read(folder)?;
    let curves_folder = folder.join("curves");
    fs::create_dir_all(&curves_folder)
        .with_context(|| format!("cannot create {}", curves_folder.display()))?;
    let curves = curves::curves(&run);
    for (name, chart) in &curves {
        atomic_file::write(&curves_folder.join(format!("{name}.svg")), chart.file().as_bytes())?;
    }
    let charts: String = curves.iter().map(|(_, chart)| chart.inline()).collect();
    let parts = [
        format!("<p>{}</p>\n", escape(&subtitle(&run))),
        tiles(&figures(&run)),
        format!("<div class=\"charts\">{charts}</div>\n"),
        sections::ranks(&run),
        sections::confusion(&run),
        sections::worst(&run),
        settings(&run),
    ];
    let path = folder.join("report.html");
    atomic_file::write(&path, page(&format!("Run {}", run.name()), &parts).as_bytes())?;
    Ok(path)
}

/// Describes mode, devices and data.
fn subtitle(run: &Run) -> String {
    let setting = |key| run.setting(key);
    let validation = match setting("valid_samples").as_str() {
        "0" | "" => String::new(),
        samples => format!(", {samples} validation"),
    };
    let named = |value: Option<&Value>, before: &str| {
        value.map_or_else(String::new, |name| format!(" {before} {}", run::show(name)))
    };
    let transport = named(run.summary.get("transport"), "over");
    let dataset = named(run.config.get("dataset"), "of");
    format!(
        "{} with {} rank(s){transport}, device {}, {} training{validation} and {} test samples{dataset}",
        setting("mode"),
        setting("world_size"),
        setting("device"),
        setting("train_samples"),
        setting("test_samples"),
    )
}

/// Returns the key results, with a dash for missing ones.
fn figures(run: &Run) -> Vec<(String, String)> {
    let (last, set) = (run.epochs.last(), run.evaluated());
    let text = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
    let mut figures = Vec::new();
    let mut evaluation = |set: &str, value: &dyn Fn(&MetricInfo) -> Option<f64>| {
        for metric in run.metrics.iter().rev() {
            let value = value(metric).map(|value| metric.text(value));
            figures.push((format!("{set} {}", metric.name), text(value)));
        }
    };
    if set == "validation" && !run.summary.is_empty() {
        evaluation("test", &|metric| run.result(&format!("test_{}", metric.name)));
    }
    evaluation(set, &|metric| last?.metric(metric));
    for metric in run.train_only() {
        let value = last.and_then(|row| row.train(metric)).map(|value| metric.text(value));
        figures.push((format!("train {}", metric.name), text(value)));
    }
    figures.extend(run.callbacks());
    figures.extend([
        ("samples per second".into(), text(run.samples_per_second().map(|rate| format!("{rate:.0}")))),
        ("optimizer steps".into(), text(run.steps.last().map(|row| row.step.to_string()))),
        ("total time".into(), duration(run.seconds())),
    ]);
    figures
}

fn settings(run: &Run) -> String {
    let setting = |(key, value): (&String, &Value)| {
        format!("<div><span>{}</span><b>{}</b></div>\n", escape(key), escape(&run::show(value)))
    };
    let settings: String = run.config.iter().map(setting).collect();
    format!("<h2>Configuration</h2>\n<div class=\"settings\">{settings}</div>\n")
}
