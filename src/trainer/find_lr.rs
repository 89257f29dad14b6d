//! `--find-lr`: a learning-rate range test in place of training.
//!
//! It is a training run on the same engine, with growing learning rates and without checkpoints. Every rank sees the
//! loss of the global batch, so that all ranks stop after the same step.

use super::{Loaders, progress::ProgressLine, strategy};
use crate::{
    config::{Config, args::ProgressArg, learning_rate::LrRange},
    context::Context,
    process::{atomic_file, console::Console, lock, stop},
    run::{
        RunFolder,
        report::{Axis, Chart, Series},
        tables,
    },
};
use anyhow::Result;
use burn::train::Learner;
use collective::{
    StepOptions,
    lr::{FnLr, RangeTestCurve, RangeTestLr, RangeTestPoint},
    strategy::{NoopRenderer, Observer, ParallelStrategy, StepModel, StepReport, StopRequest},
};
use std::sync::{Arc, Mutex};

/// Answer to [`StopRequest`] at the end of a test. Signals have smaller numbers.
const OVER: u8 = u8::MAX;

/// The learning rates of a test. `range` are values of `--lr`.
pub(super) fn schedule(range: LrRange, config: &Config) -> FnLr {
    let (factor, steps) = (config.lr_factor, config.args.find_lr.find_lr_steps);
    let rates = RangeTestLr { first: range.min * factor, last: range.max * factor, steps };
    FnLr::new(move |step| rates.at(step))
}

/// Runs the test, and writes and prints its result on rank 0.
///
/// # Errors
/// If the run folder contains a run, a file cannot be written, or training fails.
pub(super) fn run<M: StepModel>(
    context: &Context,
    config: &Config,
    loaders: &Loaders<M>,
    tested: ParallelStrategy<M>,
    learner: Learner<M>,
) -> Result<()> {
    let args = &config.args;
    let (style, steps) = (args.progress.resolved(context.is_main()), args.find_lr.find_lr_steps);
    let folder = context.is_main().then(|| RunFolder::create(args.run_dir.clone())).transpose()?;
    let finder = Arc::new(LrFinder::new(steps, config.lr_factor, style, context.console()));
    let asked = finder.clone();
    let stop = Arc::new(StopRequest::new(move || if asked.is_over() { OVER } else { stop::requested() }));
    let tested = tested
        .with_options(StepOptions { allow_non_finite: true, ..config.step_options() })
        .with_observer(finder.clone())
        .with_stop(stop.clone());
    // More than enough, because accumulation makes epochs shorter.
    let epochs = 2 + steps * args.gradients.grad_accum_steps / loaders.train.steps().max(1);
    let tested =
        strategy::run(tested, loaders, learner, epochs, |training| training.renderer(Box::new(NoopRenderer)));
    let (Some(folder), Ok(_), None | Some(OVER)) = (&folder, &tested, stop.signal()) else {
        if let Some(folder) = folder {
            folder.remove_empty();
        }
        if let Some(signal) = stop.signal().filter(|asked| *asked != OVER) {
            context.set_stop_signal(signal);
        }
        return tested.map(drop);
    };
    finder.finish(folder)
}

/// A range test in progress.
struct LrFinder {
    steps: usize,
    /// Learning rate / value of `--lr`.
    lr_factor: f64,
    console: Console,
    state: Mutex<(RangeTestCurve, ProgressLine)>,
}

impl LrFinder {
    fn new(steps: usize, lr_factor: f64, style: ProgressArg, console: Console) -> Self {
        // The dashboard is not used.
        let style = if style == ProgressArg::Tui { ProgressArg::Plain } else { style };
        let line = ProgressLine::new(style, console, "learning rates".into(), steps);
        Self { steps, lr_factor, console, state: Mutex::new((RangeTestCurve::default(), line)) }
    }

    /// Whether the loss has diverged or all rates are tested.
    fn is_over(&self) -> bool {
        let curve = &lock(&self.state).0;
        curve.diverged() || curve.points().len() >= self.steps
    }

    /// Writes the table, with values of `--lr`, and the chart, and prints the suggestion.
    fn finish(&self, folder: &RunFolder) -> Result<()> {
        let (curve, line) = &*lock(&self.state);
        line.finish();
        let row = |(step, point): (usize, &RangeTestPoint)| {
            (step, point.lr / self.lr_factor, point.loss, point.smoothed)
        };
        let table = (1..).zip(curve.points()).map(row);
        tables::write(&folder.path().join("lr_find.csv"), ["step", "lr", "loss", "smoothed_loss"], table)?;
        let chart = folder.path().join("lr_find.svg");
        atomic_file::write(&chart, self.chart(curve).file().as_bytes())?;
        let until = if curve.diverged() { ", until the loss diverged" } else { "" };
        self.console.print(&format!("tested    {} learning rates{until}", curve.points().len()));
        match (curve.valley(), curve.minimum_over_ten()) {
            (Some(valley), Some(minimum)) => {
                let [valley, minimum] = [valley, minimum].map(|rate| rounded(rate / self.lr_factor));
                self.console.print(&format!(
                    "suggested --lr {valley} (in the longest fall of the loss; a tenth of the rate with the lowest loss is {minimum})"
                ));
            }
            (Some(_) | None, _) => self.console.warn(
                "--find-lr: the loss does not fall at these rates; test others with --find-lr=MIN..MAX, or more with --find-lr-steps",
            ),
        }
        self.console.print(&format!("chart     {}", chart.display()));
        Ok(())
    }

    fn chart(&self, curve: &RangeTestCurve) -> Chart {
        // The losses of a divergence would hide the others.
        let highest = curve.points().first().map_or(0.0, |point| point.loss + point.loss.abs());
        let series = |name: &str, colour, value: fn(&RangeTestPoint) -> f64| Series {
            name: name.into(),
            points: curve
                .points()
                .iter()
                .map(|point| ((point.lr / self.lr_factor).log10(), value(point)))
                .filter(|(_, loss)| *loss <= highest)
                .collect(),
            colour,
            marked: None,
        };
        Chart {
            title: "Learning-rate range test".into(),
            x_label: "log₁₀ of --lr",
            axis: Axis::FromZero,
            legend: true,
            series: vec![
                series("loss", 0, |point| point.loss),
                series("smoothed", 1, |point| point.smoothed),
            ],
        }
    }
}

/// Rounds to two significant digits.
fn rounded(rate: f64) -> f64 {
    format!("{rate:.1e}").parse().unwrap_or(rate)
}

impl Observer for LrFinder {
    fn step_done(&self, report: &StepReport) {
        // One more step is in progress when the test is over.
        if self.is_over() {
            return;
        }
        let (curve, line) = &mut *lock(&self.state);
        curve.push(report.lr, report.loss);
        line.advance(curve.points().len(), format!("loss {:.4}", report.loss));
    }

    fn warned(&self, message: &str) {
        self.console.warn(message);
    }
}
