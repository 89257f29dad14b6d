//! `--histograms`: distributions of parameters and averaged gradients.

use super::{EventLog, Histogram};
use crate::run::tensor_io;
use burn::module::{ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::train::LearnerModel;
use collective::strategy::{Callback, Distributed, Join};
use std::sync::Arc;

/// Callback that writes histograms of every parameter and its gradient.
///
/// Parameters and averaged gradients are equal on all ranks; rank 0 writes them.
pub struct GradientHistograms {
    every: usize,
    /// Event log on rank 0, `None` on other ranks.
    log: Option<Arc<EventLog>>,
}

impl GradientHistograms {
    /// Creates a callback for step 1 and every multiple of `every`.
    pub fn new(every: usize, log: Option<Arc<EventLog>>) -> Self {
        Self { every, log }
    }
}

impl<M: LearnerModel> Callback<M> for GradientHistograms {
    fn on_gradients(&mut self, step: usize, model: &M, grads: &GradientsParams) -> Result<(), String> {
        let Some(log) = &self.log else { return Ok(()) };
        if step != 1 && !step.is_multiple_of(self.every) {
            return Ok(());
        }
        let mut write = Write { log, step, grads, path: Vec::new(), failure: None };
        model.visit(&mut write);
        write.failure.map_or(Ok(()), Err)
    }

    fn distributed(&mut self) -> Option<&mut dyn Join> {
        Some(self)
    }
}

/// The state is empty, because all ranks have the same values.
impl Distributed for GradientHistograms {
    type State = ();

    fn state(&mut self) {}

    fn join(&mut self, _: Vec<()>) {}
}

struct Write<'a> {
    log: &'a EventLog,
    step: usize,
    grads: &'a GradientsParams,
    path: Vec<String>,
    failure: Option<String>,
}

impl Write<'_> {
    fn write<const D: usize>(&mut self, kind: &str, values: Tensor<D>) {
        let name = format!("{kind}/{}", self.path.join("."));
        match tensor_io::values::<f32, D, _>(values) {
            Ok(values) => {
                if let Some(values) = Histogram::from_values(&values) {
                    self.log.histogram(name, self.step, values);
                }
            }
            Err(reason) => self.failure = Some(format!("--histograms: cannot read {name}: {reason}")),
        }
    }
}

impl ModuleVisitor for Write<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.write("parameters", param.val().inner());
        if let Some(grad) = self.grads.get::<D>(param.id) {
            self.write("gradients", grad);
        }
    }

    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }
}
