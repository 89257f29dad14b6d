//! Charts of one run.

use super::{
    chart::{Chart, Series},
    page::percent,
    run::Run,
    scale::Axis,
};
use crate::run::tables::{EpochRow, StepRow};

/// Returns the charts with their file names; accuracy only for a classifier.
pub fn curves(run: &Run) -> Vec<(&'static str, Chart)> {
    let steps = |value: fn(&StepRow) -> f64| run.by_step(value);
    let line = |name: &str, points| Series { name: name.into(), points, colour: 0, marked: None };
    let x_label = "optimizer step";
    let accuracy = Series {
        name: format!("{} accuracy", run.evaluated()),
        points: run.by_evaluation(|row| Some(100.0 * row.accuracy()?)),
        colour: 1,
        marked: Some(|accuracy| percent(accuracy / 100.0)),
    };
    let evaluated = Series {
        name: format!("{}, after each epoch", run.evaluated()),
        points: run.by_evaluation(EpochRow::loss),
        colour: 1,
        marked: Some(|loss| format!("{loss:.4}")),
    };
    let loss = vec![line("training, each step", steps(|row| row.loss)), evaluated];
    let mut charts = vec![
        ("loss", Chart { title: "Loss", x_label, axis: Axis::Logarithmic, legend: true, series: loss }),
        (
            "accuracy",
            Chart {
                title: "Accuracy in %",
                x_label,
                axis: Axis::Percent,
                legend: false,
                series: vec![accuracy],
            },
        ),
        (
            "throughput",
            Chart {
                title: "Samples per second, all ranks",
                x_label,
                axis: Axis::FromZero,
                legend: false,
                series: vec![line("samples per second", steps(|row| row.samples_per_second))],
            },
        ),
        (
            "learning_rate",
            Chart {
                title: "Learning rate",
                x_label,
                axis: Axis::FromZero,
                legend: false,
                series: vec![line("learning rate", steps(|row| row.lr))],
            },
        ),
    ];
    charts.retain(|(name, chart)| {
        *name != "accuracy" || chart.series.iter().any(|series| !series.points.is_empty())
    });
    charts
}
