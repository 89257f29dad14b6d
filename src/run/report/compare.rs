//! `burn-ddp compare`: a page that compares several runs.

use super::{
    chart::{Chart, Series, colour, dashed},
    curves::{axis, metric_points, title, unit},
    page::{duration, escape, page, table},
    run::{Run, show},
    scale::Axis,
};
use crate::process::atomic_file;
use anyhow::{Result, bail};
use clap::Args;
use collective::metric::MetricInfo;
use std::{collections::BTreeSet, path::PathBuf};

/// Arguments of `burn-ddp compare`.
#[derive(Args, Clone, Debug)]
pub struct CompareArgs {
    /// Run folders
    #[arg(required = true, num_args = 2.., value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// Output file
    #[arg(long, default_value = "compare.html", value_name = "FILE")]
    pub output: PathBuf,
}

/// Writes the page.
///
/// # Errors
/// If a folder is not a run or is given twice, a file in it is damaged, or the page cannot be written.
pub fn compare(args: &CompareArgs) -> Result<()> {
    let runs = args.runs.iter().map(|path| Run::read(path)).collect::<Result<Vec<_>>>()?;
    let mut seen = BTreeSet::new();
    if let Some(twice) = runs.iter().find(|run| !seen.insert(run.path.canonicalize().ok())) {
        bail!("{} is given twice; name different runs", twice.path.display());
    }
    let names = names(&runs);
    let charts: String = charts(&runs, &names).iter().map(Chart::inline).collect();
    let parts = [
        legend(&names),
        format!("<div class=\"charts\">{charts}</div>\n"),
        format!("<h2>Results</h2>\n{}", results(&runs, &names)),
        format!("<h2>Configuration differences</h2>\n{}", differences(&runs, &names)),
    ];
    atomic_file::write(&args.output, page(&format!("{} runs compared", runs.len()), &parts).as_bytes())
}

/// Returns folder names, or full paths if two folders have the same name.
fn names(runs: &[Run]) -> Vec<String> {
    let short: Vec<String> = runs.iter().map(Run::name).collect();
    let unique = short.iter().collect::<BTreeSet<_>>().len() == short.len();
    if unique { short } else { runs.iter().map(|run| run.path.display().to_string()).collect() }
}

fn legend(names: &[String]) -> String {
    let name = |(number, name): (usize, &String)| {
        let (colour, end) = (colour(number), if dashed(number) { "40%" } else { "100%" });
        format!(
            "<span><i style=\"background:linear-gradient(90deg,{colour} {end},transparent 0,transparent \
             calc(100% - {end}),{colour} 0)\"></i>{}</span>",
            escape(name)
        )
    };
    format!("<div class=\"legend\">{}</div>\n", names.iter().enumerate().map(name).collect::<String>())
}

/// Returns the metrics of all runs.
fn metrics(runs: &[Run]) -> Vec<&MetricInfo> {
    let mut metrics: Vec<&MetricInfo> = Vec::new();
    for metric in runs.iter().flat_map(|run| &run.metrics) {
        if !metrics.iter().any(|known| known.name == metric.name) {
            metrics.push(metric);
        }
    }
    metrics
}

/// Returns the names of the values of callbacks of all runs.
fn callbacks(runs: &[Run]) -> BTreeSet<String> {
    runs.iter().flat_map(|run| run.callbacks().into_keys()).collect()
}

fn charts(runs: &[Run], names: &[String]) -> Vec<Chart> {
    let chart = |title: String, x_label, axis, marks: bool, points: &dyn Fn(&Run) -> Vec<(f64, f64)>| {
        let series = |(colour, (run, name)): (usize, (&Run, &String))| Series {
            name: name.clone(),
            points: points(run),
            colour,
            marked: marks.then_some(|_| String::new()),
        };
        let series = runs.iter().zip(names).enumerate().map(series).collect();
        Chart { title, x_label, axis, legend: false, series }
    };
    let (steps, seconds) = ("optimizer step", "seconds of training and evaluation");
    let mut charts = vec![chart("Training loss".into(), steps, Axis::Logarithmic, false, &|run| {
        run.by_step(|row| row.loss)
    })];
    for metric in metrics(runs) {
        let title = format!("Evaluation: {}", title(metric));
        let by_time = |run: &Run| {
            let time = run.epochs.iter().scan(0.0, |time, row| {
                *time += row.get("seconds").unwrap_or(0.0);
                Some((*time, row.metric(metric)))
            });
            time.filter_map(|(time, value)| Some((time, value? * unit(metric)))).collect()
        };
        let (by, points) = (|what| format!("{title}, by {what}"), |run: &Run| metric_points(run, metric));
        if metric.name == "loss" {
            charts.push(chart(title, steps, axis(metric), true, &points));
        } else {
            charts.push(chart(by("step"), steps, axis(metric), true, &points));
            charts.push(chart(by("time"), seconds, axis(metric), true, &by_time));
        }
    }
    for name in callbacks(runs) {
        let points = |run: &Run| run.by_evaluation(|row| row.get(&name));
        charts.push(chart(name.clone(), steps, Axis::Logarithmic, true, &points));
    }
    // With --valid-split, callbacks have a value at the end only.
    charts.retain(|chart| chart.series.iter().any(|series| !series.points.is_empty()));
    charts.push(chart("Samples per second, all ranks".into(), steps, Axis::FromZero, false, &|run| {
        run.by_step(|row| row.samples_per_second)
    }));
    charts
}

fn results(runs: &[Run], names: &[String]) -> String {
    // The best value of a callback is unknown: it has no direction.
    let (metrics, callbacks) = (metrics(runs), callbacks(runs));
    let mut header = vec![String::new()];
    header.extend(metrics.iter().flat_map(|metric| [metric.name.clone(), format!("best {}", metric.name)]));
    header.extend(callbacks.iter().cloned());
    header.extend(["samples per second", "steps", "total time"].map(String::from));
    let row = |(run, name): (&Run, &String)| {
        let text =
            |metric: &MetricInfo, value: Option<f64>| value.map_or("–".into(), |value| metric.text(value));
        let last = run.epochs.last();
        let mut cells = vec![name.clone()];
        for metric in &metrics {
            let better = if metric.higher_is_better { f64::max } else { f64::min };
            let best = run.epochs.iter().filter_map(|row| row.metric(metric)).reduce(better);
            cells.extend([last.and_then(|row| row.metric(metric)), best].map(|value| text(metric, value)));
        }
        let mut values = run.callbacks();
        cells.extend(callbacks.iter().map(|name| values.remove(name).unwrap_or_else(|| "–".into())));
        cells.extend([
            run.samples_per_second().map_or("–".into(), |rate| format!("{rate:.0}")),
            run.steps.last().map_or("–".into(), |row| row.step.to_string()),
            duration(run.seconds()),
        ]);
        cells
    };
    table(&header, &runs.iter().zip(names).map(row).collect::<Vec<_>>())
}

/// Renders a table of the settings that differ between runs.
fn differences(runs: &[Run], names: &[String]) -> String {
    let keys: BTreeSet<&String> = runs.iter().flat_map(|run| run.config.keys()).collect();
    let differ = |key: &&&String| runs.iter().any(|run| run.config.get(**key) != runs[0].config.get(**key));
    let row = |key: &String| {
        let value = |run: &Run| run.config.get(key).map_or_else(|| "–".into(), show);
        [key.clone()].into_iter().chain(runs.iter().map(value)).collect()
    };
    let rows: Vec<Vec<String>> = keys.iter().filter(differ).map(|key| row(key)).collect();
    if rows.is_empty() {
        return "<p>None: all runs have the same configuration.</p>\n".into();
    }
    let header: Vec<String> = [String::new()].into_iter().chain(names.iter().cloned()).collect();
    table(&header, &rows)
}
