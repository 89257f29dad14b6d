//! Thread that sends a run to an MLflow server.

use super::{
    RunInfo,
    buffer::{Buffer, End, Status},
    client::{Client, Failure},
    now,
    remote::RemoteRun,
};
use crate::process::console::Console;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// MLflow's limit for the metrics of a request.
const BATCH: usize = 1000;
/// Time in which points are collected for a request.
const INTERVAL: Duration = Duration::from_secs(2);
/// Limit for a request during training. A server that is started may take long for its first answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Result of a run's tracking.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Address of the run's page.
    pub page: Option<String>,
    /// Whether the server has the final status.
    pub ended: bool,
    /// Names of files that were not uploaded.
    pub files: Vec<String>,
}

pub(super) struct Sender {
    client: Client,
    info: RunInfo,
    buffer: Arc<Buffer>,
    console: Console,
    warned: bool,
    retry: Duration,
}

impl Sender {
    pub fn new(client: Client, info: RunInfo, buffer: Arc<Buffer>, console: Console) -> Self {
        Self { client, info, buffer, console, warned: false, retry: FIRST_RETRY }
    }

    /// Sends points until the end of the run, then its status. Returns the run if it exists.
    pub fn send(&mut self, report: &mut Report) -> Option<RemoteRun> {
        let began = now();
        let mut run = loop {
            match RemoteRun::open(&self.client, &self.info, began, self.timeout()?) {
                Ok(run) => break run,
                Err(failure) => self.failed(&failure)?,
            }
        };
        report.page = Some(run.page());
        while let Err(failure) = run.log_params(&self.client, self.timeout()?) {
            self.warn(&failure);
            if matches!(failure, Failure::Temporary(_)) {
                self.pause()?;
            }
        }
        loop {
            let end = self.buffer.end();
            let points = self.buffer.first(BATCH);
            if points.is_empty()
                && let Some(end) = end
            {
                report.ended = self.end(&run, end.status);
                return Some(run);
            }
            match run.log(&self.client, &points, self.timeout()?) {
                Ok(()) => {
                    self.buffer.sent(points.len());
                    self.retry = FIRST_RETRY;
                    if points.len() < BATCH {
                        self.buffer.wait(INTERVAL);
                    }
                }
                Err(failure @ Failure::Temporary(_)) => {
                    self.warn(&failure);
                    self.pause()?;
                }
                Err(failure) => {
                    self.warn(&failure);
                    self.buffer.refused(points.len());
                }
            }
        }
    }

    /// Sets the final status, with retries until the deadline.
    fn end(&mut self, run: &RemoteRun, status: Status) -> bool {
        let time = now();
        while let Some(timeout) = self.timeout() {
            match run.end(&self.client, status, time, timeout) {
                Ok(()) => return true,
                Err(failure) => self.warn(&failure),
            }
            if self.pause().is_none() {
                break;
            }
        }
        false
    }

    /// Uploads files. Returns the names of those that failed.
    pub fn upload(&mut self, run: &RemoteRun, End { files, status, .. }: &End) -> Vec<String> {
        let until = Instant::now() + status.limits().1;
        let mut missing = Vec::new();
        for file in files {
            let left = until.saturating_duration_since(Instant::now());
            let uploaded = if left.is_zero() {
                Err(Failure::Temporary("timeout: uploads".into()))
            } else {
                run.upload(&self.client, file, left)
            };
            if let Err(failure) = uploaded {
                self.warn(&failure);
                missing.push(file.file_name().unwrap_or_default().to_string_lossy().into_owned());
            }
        }
        missing
    }

    /// Limit for the next request, or `None` after the deadline.
    fn timeout(&self) -> Option<Duration> {
        let Some(end) = self.buffer.end() else { return Some(REQUEST_TIMEOUT) };
        let left = end.deadline.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Handles a failure to open the run: `None` if the server refuses it.
    fn failed(&mut self, failure: &Failure) -> Option<()> {
        self.warn(failure);
        if matches!(failure, Failure::Temporary(_)) {
            return self.pause();
        }
        self.buffer.close();
        None
    }

    /// Waits before the next attempt. Returns `None` after the deadline.
    fn pause(&mut self) -> Option<()> {
        match self.buffer.end() {
            None => self.buffer.wait(self.retry),
            Some(_) => std::thread::sleep(FIRST_RETRY.min(self.timeout()?)),
        }
        self.retry = LAST_RETRY.min(self.retry * 2);
        self.timeout().map(drop)
    }

    /// Prints the first failure.
    fn warn(&mut self, failure: &Failure) {
        if !std::mem::replace(&mut self.warned, true) {
            let (uri, reason) = (self.client.server.uri(), failure.reason());
            match self.buffer.end() {
                None => self.console.warn(&format!(
                    "MLflow server {uri}: {reason}; training continues without waiting for it"
                )),
                Some(_) => self.console.warn(&format!("MLflow server {uri}: {reason}")),
            }
        }
    }
}
