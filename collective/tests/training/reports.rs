//! Reports of a strategy's observer.

use burn_ddp_collective::{
    Error,
    strategy::{EpochReport, Observer, StepReport},
};
use std::sync::Mutex;

/// Reports of one rank, and the reason for the end of its run.
#[derive(Default)]
pub struct Reports {
    pub steps: Vec<StepReport>,
    pub epochs: Vec<EpochReport>,
    pub warnings: Vec<String>,
    pub failure: Option<Error>,
}

impl Reports {
    pub fn losses(&self) -> Vec<f32> {
        self.steps.iter().map(|step| step.loss as f32).collect()
    }
}

/// An observer that collects reports. It does not set `failure`.
#[derive(Default)]
pub struct Listen(Mutex<Reports>);

impl Listen {
    pub fn take(&self) -> Reports {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

impl Observer for Listen {
    fn step_done(&self, report: &StepReport) {
        self.0.lock().expect("no panic").steps.push(report.clone());
    }
    fn epoch_done(&self, report: &EpochReport) {
        self.0.lock().expect("no panic").epochs.push(report.clone());
    }
    fn warned(&self, message: &str) {
        self.0.lock().expect("no panic").warnings.push(message.into());
    }
}
