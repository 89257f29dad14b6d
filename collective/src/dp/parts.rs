//! A training step in which every replica computes the loss of its part of the batch.

use super::{Replicas, Scatter, cast};
use crate::{
    Error, Result,
    batch_context::BatchContext,
    batch_scope::{BatchScope, gradients, random_stream},
    gradient::{in_precision, scaled},
    parameters::values,
};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use std::sync::Arc;

impl<M: Module + 'static> Replicas<M> {
    /// Gradients and value of the mean `loss` over `batch` for `module`, which is on the main device.
    ///
    /// `net` is the copy of `module` that computes on the main device. `loss` returns the mean over its part.
    ///
    /// # Errors
    /// [`Error::Device`] for the first device whose thread failed or panicked; later steps return the same error.
    pub(crate) fn gradients<B, F>(
        &self,
        module: &M,
        net: &M,
        batch: B,
        scope: &mut BatchScope<'_>,
        loss: &Arc<F>,
    ) -> Result<(GradientsParams, Tensor<1>)>
    where
        B: Scatter,
        F: Fn(&M, B) -> Tensor<1> + Send + Sync + 'static,
    {
        self.unless_failed(|| {
            let (samples, precision) = (batch.samples(), scope.precision);
            let sizes = self.sizes(samples);
            let mut parts = batch.scatter(&sizes).into_iter();
            let Some(own) = parts.next() else { return Err(Error::Invalid("the batch has no parts".into())) };
            let (busy, idle) = self.workers.split_at(sizes.len() - 1);
            let context = |size| BatchContext::new(size, samples, scope.context.loss_scale);
            let part_of_mean = |size| size as f64 / samples.max(1) as f64;
            let contexts: Vec<BatchContext> = sizes.iter().map(|size| context(*size)).collect();
            let mut pending = Vec::new();
            for (number, (worker, part)) in (1..).zip(busy.iter().zip(parts)) {
                let (parameters, group) = (values(module, true), self.group(sizes.len(), number));
                let (mut context, weight, seed) =
                    (contexts[number], part_of_mean(sizes[number]), scope.draw());
                let loss = loss.clone();
                pending.push(worker.run(move |replica| {
                    replica.update(parameters, group)?;
                    let net = in_precision(&replica.module, precision);
                    let part = cast(part.to_device(&replica.device), precision);
                    let run = || context.scope(|| gradients(&net, loss(&net, part)));
                    let (grads, loss) = match seed {
                        Some(seed) => random_stream(seed).scope(run),
                        None => run(),
                    };
                    let grads = replica.exchange(scaled(grads, &replica.module, weight))?;
                    Ok((grads, loss.mul_scalar(weight)))
                })?);
            }
            let net = &self.converted(net, sizes.len())?;
            let (grads, own) = self.here(|| {
                let part = cast(own.to_device(&self.main.0), precision);
                scope.enter_as(contexts[0], || gradients(net, loss(net, part)))
            })?;
            let weight = part_of_mean(sizes[0]);
            let (grads, others) = self.reduce(module, scaled(grads, module, weight), pending, idle)?;
            let device = self.main.0.clone().inner();
            let others = others.into_iter().map(|loss| loss.to_device(&device));
            Ok((grads, others.fold(own.mul_scalar(weight), |sum, loss| sum + loss)))
        })
    }
}
