//! The one place that prints: rank 0's header, progress and result, and everybody's last words.

use crate::{cli::ProgressArg, evaluation::Evaluation, run_config::RunConfig};
use anyhow::{Result, bail};
use collective::{
    schedule::Curve,
    strategy::{EpochReport, Observer, StepReport},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{IsTerminal, Write, stderr, stdout},
    sync::Mutex,
    time::{Duration, Instant},
};

/// How often `plain` says where an epoch is.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// How a run shows itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Not the main rank.
    Silent,
    Bar,
    Plain,
    /// burn-train's dashboard draws; only the header and the result are ours.
    Dashboard,
}

impl Style {
    /// Refuses a display that cannot be shown here.
    ///
    /// # Errors
    /// If the dashboard is not built in, or standard output is not a terminal.
    pub fn check(progress: ProgressArg) -> Result<()> {
        if progress == ProgressArg::Tui && !cfg!(feature = "tui") {
            bail!("--progress tui: this program was built without the feature `tui`");
        }
        if progress == ProgressArg::Tui && !stdout().is_terminal() {
            bail!("--progress tui needs a terminal as standard output");
        }
        Ok(())
    }

    /// What `--progress` means here.
    pub fn choose(progress: ProgressArg, is_main: bool) -> Style {
        match progress {
            _ if !is_main => Style::Silent,
            ProgressArg::Auto if stderr().is_terminal() => Style::Bar,
            ProgressArg::Auto | ProgressArg::Plain => Style::Plain,
            ProgressArg::Bar => Style::Bar,
            ProgressArg::Tui => Style::Dashboard,
        }
    }
}

/// Follows a run and shows it.
pub struct Console {
    style: Style,
    epochs: usize,
    now: Mutex<Now>,
}

/// Where the epoch in progress is.
struct Now {
    bar: ProgressBar,
    samples: usize,
    total: usize,
    began: Instant,
    said: Instant,
}

impl Console {
    pub fn new(style: Style, epochs: usize) -> Self {
        let now = Instant::now();
        let now = Now { bar: ProgressBar::hidden(), samples: 0, total: 0, began: now, said: now };
        Self { style, epochs, now: Mutex::new(now) }
    }

    /// What this run is, before it begins.
    pub fn header(&self, config: &RunConfig, why: &str, transport: &str, source: &str) {
        let RunConfig { world_size, batch_size, lr, lr_factor, .. } = config;
        let mode = serde_name(&config.mode);
        self.say(&format!("mode      {mode}, world size {world_size}: {why}"));
        let network = if *world_size > 1 { format!(", {transport} between ranks") } else { String::new() };
        self.say(&format!("device    {}, {} thread(s) a rank{network}", config.device, config.threads));
        let (train, test) = (config.train_samples, config.test_samples);
        self.say(&format!("dataset   {}: {train} training, {test} test images, {source}", config.dataset));
        let accumulate = config.gradients.accumulate;
        let times = if accumulate > 1 { format!(", {accumulate} times a step") } else { String::new() };
        let global = batch_size * world_size * accumulate;
        self.say(&format!("batch     {batch_size} a rank{times}, {global} in all"));
        let scaled = lr * lr_factor;
        let warmup = match config.warmup_epochs {
            0.0 => String::new(),
            epochs => format!(", reached from {:.6} over {epochs} epoch(s)", config.warmup(0).base),
        };
        let curve = match config.optimisation.lr_schedule {
            Curve::Constant => String::new(),
            curve => format!(" at most, {curve}"),
        };
        let scale = serde_name(&config.scale_lr);
        self.say(&format!("lr        {lr} x {lr_factor:.3} ({scale}) = {scaled:.6}{warmup}{curve}"));
    }

    /// Whether anything is shown at all.
    pub fn is_visible(&self) -> bool {
        self.style != Style::Silent
    }

    /// A line of rank 0's.
    pub fn say(&self, line: &str) {
        if self.style != Style::Silent {
            print_line(line);
        }
    }

    /// A line that must not be overlooked.
    pub fn warn(&self, line: &str) {
        if self.style != Style::Silent {
            last_words(&format!("warning: {line}"));
        }
    }

    fn now(&self) -> std::sync::MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A line to standard output.
pub fn print_line(line: &str) {
    // Whoever closed our standard output does not want the line.
    let _ = writeln!(stdout(), "{line}");
}

/// A line to standard error, from any rank or the launcher.
pub fn last_words(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

/// An enum's name as its serialised form has it.
fn serde_name(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(String::from)).unwrap_or_default()
}

impl Observer for Console {
    fn epoch_started(&self, epoch: usize, _steps: usize, samples: usize) {
        let bar = match self.style {
            Style::Bar => ProgressBar::new(samples as u64),
            Style::Silent | Style::Plain | Style::Dashboard => ProgressBar::hidden(),
        };
        let template = "{prefix} {bar:30} {pos}/{len} {msg} {eta} left";
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar.set_prefix(format!("epoch {epoch}/{}", self.epochs));
        let now = Instant::now();
        *self.now() = Now { bar, samples: 0, total: samples, began: now, said: now };
    }

    fn step_done(&self, report: &StepReport) {
        let mut now = self.now();
        now.samples += report.samples;
        let rate = now.samples as f64 / now.began.elapsed().as_secs_f64().max(1e-9);
        let state = format!("{rate:.0} images/s loss {:.4}", report.loss);
        now.bar.inc(report.samples as u64);
        if self.style == Style::Plain && now.said.elapsed() > PLAIN_EVERY {
            now.said = Instant::now();
            let (epoch, samples, total) = (report.epoch, now.samples, now.total);
            self.say(&format!("epoch {epoch}/{}  {samples}/{total}  {state}", self.epochs));
        }
        now.bar.set_message(state);
    }

    fn evaluation_started(&self, _epoch: usize, _samples: usize) {
        self.now().bar.set_message("testing");
    }

    fn found(&self, _epoch: usize, name: &str, value: &str) {
        self.say(&format!("{name} {value}"));
    }

    fn warned(&self, message: &str) {
        self.warn(message);
    }

    fn epoch_done(&self, report: &EpochReport) {
        self.now().bar.finish_and_clear();
        if self.style == Style::Dashboard {
            return;
        }
        let test = Evaluation::of(report);
        let rate = report.train_samples as f64 / report.train_time.as_secs_f64().max(1e-9);
        let skipped = match (report.skipped_steps, report.loss_scale) {
            (steps @ 1.., Some(scale)) => format!("  {steps} step(s) skipped, loss scale {scale}"),
            _ => String::new(),
        };
        self.say(&format!(
            "epoch {}/{}  train loss {:.4}  test loss {:.4}  test accuracy {:.2} %  {rate:.0} images/s  {:.1} s{skipped}",
            report.epoch,
            self.epochs,
            report.train_loss,
            test.loss,
            100.0 * test.accuracy,
            report.elapsed.as_secs_f64(),
        ));
    }
}
