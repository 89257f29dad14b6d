//! A training step that gathers the outputs of all replicas, and computes the loss of the batch on one device.

use super::{Outputs, ParallelStep, Replicas, Scatter, cast, worker::Pending};
use crate::{
    Error, Result,
    gradient::{add, in_precision},
    precision::{Precision, backward},
};
use burn::optim::GradientsParams;
use burn::train::TrainOutput;

impl<M: ParallelStep> Replicas<M> {
    /// Runs one training step of `model`, which is on the main device, with the forward pass in `precision` and a seed
    /// for each worker's random numbers.
    ///
    /// Returns the gradients of the loss over the whole batch, on the main device, and the output for metrics. In f16,
    /// the gradients are multiplied by the loss scale of the batch's context.
    ///
    /// # Errors
    /// [`Error::Device`] for the first device whose thread failed or panicked; later steps return the same error.
    pub fn step(
        &self,
        precision: Precision,
        model: &M,
        batch: M::Input,
        seed: impl FnMut() -> Option<u64>,
    ) -> Result<TrainOutput<M::Output>> {
        self.unless_failed(|| {
            let (sizes, own, graphs) = self.start(model, batch.clone(), seed, move |replica, part| {
                Ok(forward(&in_precision(&replica.module, precision), part, precision))
            })?;
            let (busy, idle) = self.workers.split_at(sizes.len() - 1);
            let model = &self.converted(model, sizes.len())?;
            let own = self
                .here(|| forward(&in_precision(model, precision), own.to_device(&self.main.0), precision))?;
            let graphs = graphs.into_iter().map(Pending::wait).collect::<Result<Vec<_>>>()?;
            let all: Vec<M::Outputs> =
                [&own].into_iter().chain(&graphs).map(|part| part.clone().detach()).collect();
            let (loss, item, gathered) = self.here(|| {
                let device = self.output.clone().inner();
                let gathered =
                    M::Outputs::gather(all.into_iter().map(|part| part.to_device(&device)).collect()).leaf();
                let (loss, item) = model.criterion(gathered.clone(), batch.to_device(&self.output));
                (loss, item, gathered)
            })?;
            let (gradients, outputs) = self.here(|| {
                let mut gradients = backward(&loss);
                let outputs = gathered.gradient(&gradients);
                // Gradients of parameters that the criterion itself uses.
                (GradientsParams::from_module(&mut gradients, model), outputs)
            })?;
            let mut outputs = outputs.scatter(&sizes).into_iter();
            let Some(mine) = outputs.next() else {
                return Err(Error::Invalid("the outputs have no parts".into()));
            };
            let mut pending = Vec::new();
            for (worker, (graph, gradient)) in busy.iter().zip(graphs.into_iter().zip(outputs)) {
                pending.push(worker.run(move |replica| {
                    let gradient = Scatter::to_device(gradient, &replica.device.clone().inner());
                    let sum = graph.weighted_sum(gradient);
                    let grads = GradientsParams::from_grads(sum.backward(), &replica.module);
                    Ok((replica.exchange(grads)?, ()))
                })?);
            }
            let own = self.here(|| {
                let sum = own.weighted_sum(mine.to_device(&self.main.0.clone().inner()));
                GradientsParams::from_grads(sum.backward(), model)
            })?;
            let (reduced, _) = self.reduce(model, own, pending, idle)?;
            let grads = add(model, gradients.to_device(&self.main.0.clone().inner(), model), reduced);
            Ok(TrainOutput { grads, item })
        })
    }

    /// Number of workers that receive a part of the batch.
    pub(crate) fn busy_workers(&self, samples: usize) -> usize {
        self.sizes(samples).len() - 1
    }
}

/// Outputs in f32 of `net`, whose parameters are of type `precision`.
pub(crate) fn forward<M: ParallelStep>(net: &M, part: M::Input, precision: Precision) -> M::Outputs {
    let outputs = net.forward_part(cast(part, precision));
    if precision == Precision::F32 { outputs } else { outputs.to_f32() }
}
