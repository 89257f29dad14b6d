//! What surrounds forward and backward of one batch: its context, precision and random numbers.

use crate::{
    batch_context::BatchContext,
    data::sampler::mix,
    gradient::{Step, in_precision},
    precision::{Precision, backward},
};
use burn::{
    module::Module,
    optim::GradientsParams,
    tensor::{DType, FloatDType, Tensor},
};
use kernels::random::RandomStream;
use std::time::Instant;

/// The context in which a batch is computed.
pub struct BatchScope<'a> {
    pub(crate) context: BatchContext,
    /// Floating-point type of forward and backward.
    pub precision: Precision,
    /// Random numbers of the step, if steps are seeded.
    pub(crate) random: Option<&'a mut RandomStream>,
    /// The step that the batch completes.
    pub(crate) step: Option<&'a Step<'a>>,
}

impl BatchScope<'_> {
    /// Copies `module` for forward and backward, with parameters cast to `precision`.
    pub(crate) fn copy<M: Module>(&self, module: &M, precision: Precision) -> M {
        match self.step {
            Some(step) => step.watch_in(precision, module),
            None => in_precision(module, precision),
        }
    }

    /// Runs forward and backward of this thread's batch.
    pub fn enter<R>(&mut self, act: impl FnOnce() -> R) -> R {
        self.enter_as(self.context, act)
    }

    /// Runs `act` with another context of the batch.
    pub(crate) fn enter_as<R>(&mut self, mut context: BatchContext, act: impl FnOnce() -> R) -> R {
        let run = || context.scope(act);
        let result = match &mut self.random {
            Some(stream) => stream.scope(run),
            None => run(),
        };
        self.context.scaled |= context.scaled;
        result
    }

    /// When the first gradient of the batch arrived; `None` for accumulated batches, and without overlap.
    pub(crate) fn first_gradient(&self) -> Option<Instant> {
        self.step?.first_arrival()
    }

    /// A seed for a replica in another thread, if steps are seeded.
    pub fn draw(&mut self) -> Option<u64> {
        self.random.as_mut()?.draw()
    }
}

/// The random stream of one replica and step.
pub(crate) fn random_stream(seed: u64) -> RandomStream {
    let mut drawn = 0;
    RandomStream::new(move || {
        drawn += 1;
        mix(seed, drawn - 1)
    })
}

/// Gradients of a mean loss in f32 for `net`, and the loss without a graph.
pub(crate) fn gradients<M: Module>(net: &M, loss: Tensor<1>) -> (GradientsParams, Tensor<1>) {
    let loss = match loss.dtype() {
        DType::F32 => loss,
        _ => loss.cast(FloatDType::F32),
    };
    let grads = GradientsParams::from_grads(backward(&loss), net);
    (grads, loss.inner())
}
