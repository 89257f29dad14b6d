//! Console metrics renderer for burn-train.

use super::progress::ProgressLine;
use crate::{config::args::ProgressArg, process::console::Console};
use burn::train::{
    LearnerSummary,
    logger::{EvaluationProgressLogger, TrainingProgressLogger},
    metric::{MetricDefinition, MetricEntry, MetricId},
    renderer::{
        EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation, MetricsRendererTraining,
    },
};
use std::{collections::HashMap, error::Error, time::Instant};

/// Metrics renderer that prints the progress of a burn-train `Learner` to the console.
///
/// Like [`Trainer`](crate::Trainer), it draws a bar on a terminal and otherwise prints a line every ten seconds,
/// and prints a line with all metrics per epoch.
///
/// `Trainer` reports through an [`Observer`](collective::strategy::Observer) instead: a `MetricsRenderer` gets
/// neither throughput nor skipped steps.
pub struct ConsoleRenderer {
    style: ProgressArg,
    console: Console,
    names: HashMap<MetricId, String>,
    epoch: usize,
    epochs: usize,
    split: String,
    line: ProgressLine,
    /// Metrics of the epoch by split and name, in the order of their first value.
    metrics: Vec<((String, String), String)>,
    began: Instant,
}

impl ConsoleRenderer {
    /// Creates a renderer that prints on the main rank only.
    pub fn new(is_main: bool) -> Self {
        let (style, console) = (ProgressArg::Auto.resolved(is_main), Console::new(is_main));
        Self {
            style,
            console,
            names: HashMap::new(),
            epoch: 1,
            epochs: 1,
            split: String::new(),
            line: ProgressLine::new(ProgressArg::Plain, console, String::new(), 0),
            metrics: Vec::new(),
            began: Instant::now(),
        }
    }

    fn begin(&mut self, split: &str, total: usize) {
        self.split = split.into();
        let prefix = format!("epoch {}/{} {split}", self.epoch, self.epochs);
        self.line = ProgressLine::new(self.style, self.console, prefix, total);
    }

    /// Stores the latest value of a metric.
    fn update(&mut self, split: &str, state: MetricState) {
        let (entry, value) = match state {
            MetricState::Generic(entry) => (entry, None),
            MetricState::Numeric(entry, value) => (entry, value),
        };
        let MetricEntry { metric_id, serialized_entry } = entry;
        let Some(name) = self.names.get(&metric_id) else { return };
        let text = value.map_or(serialized_entry.formatted, |value| format!("{:.6}", value.current()));
        let key = (split.to_owned(), name.clone());
        match self.metrics.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = text,
            None => self.metrics.push((key, text)),
        }
    }

    /// Prints the metrics of an epoch or a test.
    fn report(&mut self, what: &str) {
        self.line.finish();
        let metrics: String = std::mem::take(&mut self.metrics)
            .into_iter()
            .map(|((split, name), value)| format!("  {split} {name} {value}"))
            .collect();
        self.console.print(&format!("{what}{metrics}  {:.1} s", self.began.elapsed().as_secs_f64()));
        self.began = Instant::now();
    }
}

impl MetricsRendererTraining for ConsoleRenderer {
    fn update_train(&mut self, state: MetricState) {
        self.update("train", state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.update("valid", state);
    }

    fn on_train_end(&mut self, summary: Option<LearnerSummary>) -> Result<(), Box<dyn Error>> {
        summary.iter().for_each(|summary| self.console.print(&summary.to_string()));
        Ok(())
    }
}

impl TrainingProgressLogger for ConsoleRenderer {
    fn start(&mut self, epochs: usize, starting: usize, _items: Option<usize>, _label: Option<&str>) {
        (self.epochs, self.epoch, self.began) = (epochs, starting.max(1), Instant::now());
    }

    fn update_epoch(&mut self, epoch: usize) {
        self.report(&format!("epoch {epoch}/{}", self.epochs));
        self.epoch = epoch + 1;
    }

    fn start_split(&mut self, split: &str, items: usize) {
        self.begin(split, items);
    }

    fn update_split(&mut self, items: usize) {
        self.line.advance(items, String::new());
    }

    fn end_split(&mut self) {
        self.line.finish();
    }

    fn end(&mut self) {}
    fn log_event_training(&mut self, _event: String) {}
}

impl MetricsRendererEvaluation for ConsoleRenderer {
    fn update_test(&mut self, _name: EvaluationName, state: MetricState) {
        self.update("test", state);
    }

    fn on_test_end(&mut self, summary: Option<LearnerSummary>) -> Result<(), Box<dyn Error>> {
        self.on_train_end(summary)
    }
}

impl EvaluationProgressLogger for ConsoleRenderer {
    fn start_global_progress(&mut self, _tests: usize) {
        self.began = Instant::now();
    }

    fn start_test(&mut self, name: &str, items: usize) {
        self.begin(name, items);
    }

    fn update_test_progress(&mut self, items: usize) {
        self.line.advance(items, String::new());
    }

    fn end_test(&mut self) {
        self.report(&self.split.clone());
    }

    fn end_global_progress(&mut self) {}
    fn log_event_evaluation(&mut self, _event: String) {}
}

impl MetricsRenderer for ConsoleRenderer {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id, definition.name.to_string());
    }
}
