//! `burn-ddp compare`: a page that compares several runs.

use super::{
    chart::{Chart, Series, colour, dashed},
    page::{duration, escape, page, percent, table},
    run::{Run, show},
    save,
    scale::Axis,
};
use crate::run::tables::EpochRow;
use anyhow::{Result, bail};
use clap::Args;
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
    save(&args.output, &page(&format!("{} runs compared", runs.len()), &parts))
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

fn charts(runs: &[Run], names: &[String]) -> [Chart; 5] {
    let chart = |title, x_label, axis, marks: bool, points: &dyn Fn(&Run) -> Vec<(f64, f64)>| {
        let series = |(colour, (run, name)): (usize, (&Run, &String))| Series {
            name: name.clone(),
            points: points(run),
            colour,
            marked: marks.then_some(|_| String::new()),
        };
        let series = runs.iter().zip(names).enumerate().map(series).collect();
        Chart { title, x_label, axis, legend: false, series }
    };
    let (steps, accuracy) = ("optimizer step", |row: &EpochRow| Some(100.0 * row.accuracy()?));
    [
        chart("Training loss", steps, Axis::Logarithmic, false, &|run| run.by_step(|row| row.loss)),
        chart("Loss of the evaluation", steps, Axis::Logarithmic, true, &|run| {
            run.by_evaluation(EpochRow::loss)
        }),
        chart("Accuracy of the evaluation in %, by step", steps, Axis::Percent, true, &|run| {
            run.by_evaluation(accuracy)
        }),
        chart(
            "Accuracy of the evaluation in %, by time",
            "seconds of training and evaluation",
            Axis::Percent,
            true,
            &|run| {
                let time = run.epochs.iter().scan(0.0, |time, row| {
                    *time += row.seconds;
                    Some((*time, accuracy(row)))
                });
                time.filter_map(|(time, accuracy)| Some((time, accuracy?))).collect()
            },
        ),
        chart("Samples per second, all ranks", steps, Axis::FromZero, false, &|run| {
            run.by_step(|row| row.samples_per_second)
        }),
    ]
}

fn results(runs: &[Run], names: &[String]) -> String {
    let header = ["", "accuracy", "best", "loss", "samples per second", "steps", "total time"];
    let row = |(run, name): (&Run, &String)| {
        let none = || "–".to_owned();
        let last = run.epochs.last();
        let best = run.epochs.iter().filter_map(EpochRow::accuracy).reduce(f64::max);
        vec![
            name.clone(),
            last.and_then(EpochRow::accuracy).map_or_else(none, percent),
            best.map_or_else(none, percent),
            last.and_then(EpochRow::loss).map_or_else(none, |loss| format!("{loss:.4}")),
            run.samples_per_second().map_or_else(none, |rate| format!("{rate:.0}")),
            run.steps.last().map_or_else(none, |row| row.step.to_string()),
            duration(run.seconds()),
        ]
    };
    table(&header.map(String::from), &runs.iter().zip(names).map(row).collect::<Vec<_>>())
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
