//! Charts of one run.

use super::{
    chart::{Chart, Series},
    run::Run,
    scale::Axis,
};
use crate::run::tables::StepRow;
use collective::metric::MetricInfo;

/// Returns the charts with their file names.
pub fn curves(run: &Run) -> Vec<(String, Chart)> {
    let line = |name: &str, value: fn(&StepRow) -> f64| Series {
        name: name.into(),
        points: run.by_step(value),
        colour: 0,
        marked: None,
    };
    let chart = |file: &str, title: String, axis, series: Vec<Series>| {
        let file = file.replace(|c: char| !c.is_alphanumeric() && c != '-', "_");
        (file, Chart { title, x_label: "optimizer step", axis, legend: series.len() > 1, series })
    };
    let evaluation = |name: String, points, marked| Series { name, points, colour: 1, marked: Some(marked) };
    let of_metric = |metric: &MetricInfo, name| evaluation(name, metric_points(run, metric), label(metric));
    let mut loss = vec![line("training, each step", |row| row.loss)];
    loss.extend(
        run.metrics.first().map(|loss| of_metric(loss, format!("{}, after each epoch", run.evaluated()))),
    );
    let mut charts = vec![chart("loss", "Loss".into(), Axis::Logarithmic, loss)];
    let training = |metric: &MetricInfo| {
        let points = run.by_evaluation(|row| Some(row.train(metric)? * unit(metric)));
        Series { name: "training, each epoch".into(), points, colour: 0, marked: Some(label(metric)) }
    };
    for metric in run.metrics.iter().skip(1) {
        let mut series = vec![of_metric(metric, format!("{} {}", run.evaluated(), metric.name))];
        series.extend(Some(training(metric)).filter(|series| !series.points.is_empty()));
        charts.push(chart(&metric.name, title(metric), axis(metric), series));
    }
    for metric in run.train_only() {
        charts.push(chart(
            &format!("train_{}", metric.name),
            title(metric),
            axis(metric),
            vec![training(metric)],
        ));
    }
    for name in run.callbacks().into_keys() {
        let points = run.by_evaluation(|row| row.get(&name));
        let series = evaluation(name.clone(), points, label(&MetricInfo::new("")));
        charts.push(chart(&name, name.clone(), Axis::Logarithmic, vec![series]));
    }
    charts.retain(|(name, chart)| name == "loss" || !chart.series[0].points.is_empty());
    let throughput = line("samples per second", |row| row.samples_per_second);
    let title = "Samples per second, all ranks".into();
    charts.push(chart("throughput", title, Axis::FromZero, vec![throughput]));
    let rate = line("learning rate", |row| row.lr);
    charts.push(chart("learning_rate", "Learning rate".into(), Axis::FromZero, vec![rate]));
    charts
}

/// Returns the value of a metric after each epoch, in the unit of its chart.
pub fn metric_points(run: &Run, metric: &MetricInfo) -> Vec<(f64, f64)> {
    run.by_evaluation(|row| Some(row.metric(metric)? * unit(metric)))
}

/// Unit of a metric's chart.
pub fn unit(metric: &MetricInfo) -> f64 {
    if metric.percent { 100.0 } else { 1.0 }
}

/// Axis of a metric's chart.
pub fn axis(metric: &MetricInfo) -> Axis {
    if metric.percent { Axis::Percent } else { Axis::Logarithmic }
}

/// Title of a metric's chart: the name with a capital letter, and the unit.
pub fn title(metric: &MetricInfo) -> String {
    let (first, rest) = metric.name.split_at(metric.name.ceil_char_boundary(1));
    let unit = if metric.percent { "%" } else { &metric.unit };
    format!("{}{rest}{}{unit}", first.to_uppercase(), if unit.is_empty() { "" } else { " in " })
}

/// Formats a value of a chart.
fn label(metric: &MetricInfo) -> fn(f64) -> String {
    if metric.percent { |value| format!("{value:.2} %") } else { |value| format!("{value:.4}") }
}
