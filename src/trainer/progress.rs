//! Progress display of a run: a bar, plain lines, or burn-train's dashboard.

use crate::{
    config::{Config, ProgramSettings, TrainerArgs, args::ProgressArg},
    process::{auto_batch, console::Console, lock},
    run::EvaluatedSet,
};
use burn::train::{
    Interrupter,
    renderer::{MetricsRenderer, default_renderer},
};
use collective::{
    lr::LrSchedule,
    strategy::{EpochReport, NoopRenderer, Observer, StepReport},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{IsTerminal, stderr},
    sync::Mutex,
    time::{Duration, Instant},
};

/// Time between two lines of [`ProgressArg::Plain`] within an epoch.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

impl ProgressArg {
    /// Replaces [`Auto`](Self::Auto), and every display of a rank that is not the main one, whose console is hidden.
    pub(super) fn resolved(self, is_main: bool) -> Self {
        match self {
            _ if !is_main => ProgressArg::Plain,
            ProgressArg::Auto if stderr().is_terminal() => ProgressArg::Bar,
            ProgressArg::Auto => ProgressArg::Plain,
            ProgressArg::Bar | ProgressArg::Plain | ProgressArg::Tui => self,
        }
    }

    /// Returns burn-train's renderer: its dashboard, or a no-op renderer.
    pub(super) fn renderer(self, interrupter: Interrupter) -> Box<dyn MetricsRenderer> {
        match self {
            ProgressArg::Tui => default_renderer(interrupter, None),
            ProgressArg::Auto | ProgressArg::Bar | ProgressArg::Plain => Box::new(NoopRenderer),
        }
    }
}

/// A progress bar, or a line every ten seconds with [`ProgressArg::Plain`].
pub(super) struct ProgressLine {
    style: ProgressArg,
    console: Console,
    prefix: String,
    total: usize,
    bar: ProgressBar,
    printed: Instant,
}

impl ProgressLine {
    /// Creates a line for `total` items, which starts with `prefix`.
    pub fn new(style: ProgressArg, console: Console, prefix: String, total: usize) -> Self {
        let bar = match style {
            ProgressArg::Bar => ProgressBar::new(total as u64),
            ProgressArg::Auto | ProgressArg::Plain | ProgressArg::Tui => ProgressBar::hidden(),
        };
        let template = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {msg} {eta} left");
        bar.set_style(template.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(prefix.clone());
        Self { style, console, prefix, total, bar, printed: Instant::now() }
    }

    /// Shows that `done` items are done.
    pub fn advance(&mut self, done: usize, message: String) {
        self.bar.set_position(done as u64);
        if self.style == ProgressArg::Plain && self.printed.elapsed() > PLAIN_EVERY {
            self.printed = Instant::now();
            let line = format!("{}  {done}/{}  {message}", self.prefix, self.total);
            self.console.print(line.trim_end());
        }
        self.bar.set_message(message);
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// An observer that displays the progress of a run.
pub struct Progress {
    style: ProgressArg,
    console: Console,
    epochs: usize,
    set: EvaluatedSet,
    state: Mutex<State>,
}

/// The epoch in progress.
struct State {
    line: ProgressLine,
    samples: usize,
    began: Instant,
}

impl Progress {
    /// Creates the display of a run of `epochs` epochs.
    pub fn new(style: ProgressArg, console: Console, epochs: usize, set: EvaluatedSet) -> Self {
        let line = ProgressLine::new(ProgressArg::Plain, console, String::new(), 0);
        let state = Mutex::new(State { line, samples: 0, began: Instant::now() });
        Self { style, console, epochs, set, state }
    }
}

/// Prints the configuration of a run before training.
pub fn print_header(console: Console, config: &Config, why: &str, transport: &str) {
    let Config { world_size, lr_factor, args, program, .. } = config;
    let (TrainerArgs { batch_size, lr, .. }, ProgramSettings { train_samples, test_samples, .. }) =
        (args, program);
    let mode = serde_name(&config.mode);
    console.print(&format!("mode      {mode}, world size {world_size}: {why}"));
    let network = if *world_size > 1 || transport.starts_with("nccl") {
        format!(", {transport} between ranks")
    } else {
        String::new()
    };
    console.print(&format!("device    {}, {} thread(s) per rank{network}", config.device, config.threads));
    let (before, after) = match &program.dataset {
        Some(dataset) => (format!("{}: ", dataset.name), format!(", {}", dataset.source)),
        None => (String::new(), String::new()),
    };
    let validation = match program.valid_samples {
        0 => String::new(),
        samples => format!("{samples} validation, "),
    };
    console.print(&format!(
        "dataset   {before}{train_samples} training, {validation}{test_samples} test samples{after}"
    ));
    if let Some(local_sgd) = args.gradients.local_sgd() {
        console.print(&format!("sync      parameters {local_sgd}"));
    }
    let accumulate = args.gradients.grad_accum_steps;
    let accumulated =
        if accumulate > 1 { format!(" x {accumulate} batches per step") } else { String::new() };
    let global = batch_size * world_size * accumulate;
    let halved = match auto_batch::divisor() {
        Ok(divisor @ 2..) => format!(
            "; --batch-size {} --grad-accum-steps {} did not fit into device memory",
            batch_size * divisor,
            accumulate / divisor
        ),
        Ok(_) | Err(_) => String::new(),
    };
    console.print(&format!("batch     {batch_size} per rank{accumulated}, {global} global{halved}"));
    let scaled = lr * lr_factor;
    let warmup = match args.rate.warmup_epochs {
        0.0 => String::new(),
        epochs => format!(", from {:.6} over {epochs} epoch(s) of warm-up", config.warmup(0).base),
    };
    let curve = match args.rate.lr_schedule {
        LrSchedule::Constant => String::new(),
        curve => format!(", the maximum of {curve}"),
    };
    let scale = serde_name(&args.scale_lr);
    console.print(&format!("lr        {lr} x {lr_factor:.3} ({scale}) = {scaled:.6}{warmup}{curve}"));
}

/// Returns the serialised name of an enum value.
fn serde_name(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(String::from)).unwrap_or_default()
}

impl Observer for Progress {
    fn epoch_started(&self, epoch: usize, _steps: usize, samples: usize) {
        let prefix = format!("epoch {epoch}/{}", self.epochs);
        let line = ProgressLine::new(self.style, self.console, prefix, samples);
        *lock(&self.state) = State { line, samples: 0, began: Instant::now() };
    }

    fn step_done(&self, report: &StepReport) {
        let state = &mut *lock(&self.state);
        state.samples += report.samples;
        let rate = state.samples as f64 / state.began.elapsed().as_secs_f64().max(1e-9);
        state.line.advance(state.samples, format!("{rate:.0} samples/s loss {:.4}", report.loss));
    }

    fn evaluation_started(&self, _epoch: usize, _samples: usize) {
        lock(&self.state).line.bar.set_message("evaluating");
    }

    fn warned(&self, message: &str) {
        self.console.warn(message);
    }

    fn noted(&self, message: &str) {
        lock(&self.state).line.finish();
        self.console.print(message);
    }

    fn epoch_done(&self, report: &EpochReport) {
        lock(&self.state).line.finish();
        if self.style == ProgressArg::Tui {
            return;
        }
        let set = self.set.name();
        let evaluation: String =
            report.metrics.iter().map(|value| format!("  {set} {}", value.text())).collect();
        // Those that are evaluated, too, are in the tables and the report.
        let train_only = report.train.iter().skip(1).filter(|of| report.metric(&of.metric.name).is_none());
        let train_only: String = train_only.map(|value| format!("  train {}", value.text())).collect();
        let rate = report.train_samples as f64 / report.train_time.as_secs_f64().max(1e-9);
        let skipped = match (report.skipped_steps, report.loss_scale) {
            (steps @ 1.., Some(scale)) => format!("  {steps} step(s) skipped, loss scale {scale}"),
            _ => String::new(),
        };
        self.console.print(&format!(
            "epoch {}/{}  train loss {:.4}{train_only}{evaluation}  {rate:.0} samples/s  {:.1} s{skipped}",
            report.epoch,
            self.epochs,
            report.train_loss(),
            report.elapsed.as_secs_f64(),
        ));
        self.tested(report);
    }

    fn tested(&self, report: &EpochReport) {
        let logged = report.logged.iter().filter(|_| self.style != ProgressArg::Tui);
        logged.for_each(|value| self.console.print(&format!("{} {}", value.name, value.text)));
    }
}
