//! HTML reports: charts and tables of one run, and a comparison of several runs.
//!
//! Each page is a self-contained file.

mod chart;
mod classification;
mod compare;
mod curves;
mod page;
mod ranks;
mod run;
mod scale;

pub use compare::{CompareArgs, compare};
pub use run::Run;

use crate::process::atomic_file;
use anyhow::{Context, Result};
use clap::Args;
use page::{duration, escape, page, percent, tiles};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Arguments of `burn-ddp report`.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Run folder
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
}

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
        save(&curves_folder.join(format!("{name}.svg")), &chart.file())?;
    }
    let charts: String = curves.iter().map(|(_, chart)| chart.inline()).collect();
    let parts = [
        format!("<p>{}</p>\n", escape(&subtitle(&run))),
        tiles(&figures(&run)),
        format!("<div class=\"charts\">{charts}</div>\n"),
        ranks::section(&run),
        classification::confusion(&run),
        classification::worst(&run),
        settings(&run),
    ];
    let path = folder.join("report.html");
    save(&path, &page(&format!("Run {}", run.name()), &parts))?;
    Ok(path)
}

fn save(path: &Path, text: &str) -> Result<()> {
    atomic_file::write(path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

/// Describes mode, devices and data.
fn subtitle(run: &Run) -> String {
    let setting = |key| run.setting(key);
    let transport = run.end.as_ref().map_or_else(String::new, |end| format!(" over {}", end.transport));
    let dataset =
        run.config.get("dataset").map_or_else(String::new, |name| format!(" of {}", run::show(name)));
    format!(
        "{} with {} rank(s){transport}, device {}, {} training and {} test samples{dataset}",
        setting("mode"),
        setting("world_size"),
        setting("device"),
        setting("train_samples"),
        setting("test_samples"),
    )
}

/// Returns the key results, with a dash for missing ones.
fn figures(run: &Run) -> Vec<(&'static str, String)> {
    let last = run.epochs.last();
    let none = || "–".to_owned();
    let accuracy = last.and_then(|row| row.test_accuracy).map(|share| ("test accuracy", percent(share)));
    let others = [
        ("test loss", last.map_or_else(none, |row| format!("{:.4}", row.test_loss))),
        ("samples per second", run.samples_per_second().map_or_else(none, |rate| format!("{rate:.0}"))),
        ("optimizer steps", run.steps.last().map_or_else(none, |row| row.step.to_string())),
        ("in all", duration(run.seconds())),
    ];
    accuracy.into_iter().chain(others).collect()
}

fn settings(run: &Run) -> String {
    let setting = |(key, value): (&String, &serde_json::Value)| {
        format!("<div><span>{}</span><b>{}</b></div>\n", escape(key), escape(&run::show(value)))
    };
    let settings: String = run.config.iter().map(setting).collect();
    format!("<h2>Configuration</h2>\n<div class=\"settings\">{settings}</div>\n")
}
