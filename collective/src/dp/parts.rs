//! A training step in which every replica computes the loss of its part of the batch.

use super::{Replicas, Scatter, cast, worker::Replica};
use crate::{
    Result,
    batch_context::BatchContext,
    batch_scope::{BatchScope, gradients},
    gradient::{in_precision, scaled},
};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use std::sync::Arc;

impl<M: Module + 'static> Replicas<M> {
    /// Gradients and value of the mean `loss` over `batch` for `module`, which is on the main device.
    ///
    /// `loss` returns the mean over its part.
    ///
    /// # Errors
    /// [`Error::Device`] for the first device whose thread failed or panicked; later steps return the same error.
    pub(crate) fn gradients<B, F>(
        &self,
        module: &M,
        batch: B,
        scope: &mut BatchScope<'_>,
        loss: &Arc<F>,
    ) -> Result<(GradientsParams, Tensor<1>)>
    where
        B: Scatter,
        F: Fn(&M, B) -> Tensor<1> + Send + Sync + 'static,
    {
        self.unless_failed(|| {
            let (samples, precision, scale) = (batch.samples(), scope.precision, scope.context.loss_scale);
            let context = move |size| BatchContext::new(size, samples, scale);
            let part_of_mean = move |size| size as f64 / samples.max(1) as f64;
            let of_part = loss.clone();
            let act = move |replica: &mut Replica<M>, part: B| {
                let (mut context, weight) = (context(part.samples()), part_of_mean(part.samples()));
                let (net, part) = (in_precision(&replica.module, precision), cast(part, precision));
                let (grads, loss) = context.scope(|| gradients(&net, of_part(&net, part)));
                let grads = replica.exchange(scaled(grads, &replica.module, weight))?;
                Ok((grads, loss.mul_scalar(weight)))
            };
            let (sizes, own, pending) = self.start(module, batch, || scope.draw(), act)?;
            let idle = &self.workers[sizes.len() - 1..];
            let net = &self.converted(&scope.copy(module, precision), sizes.len())?;
            let (grads, own) = self.here(|| {
                let part = cast(own.to_device(&self.main.0), precision);
                scope.enter_as(context(sizes[0]), || gradients(net, loss(net, part)))
            })?;
            let weight = part_of_mean(sizes[0]);
            let (grads, others) = self.reduce(module, scaled(grads, module, weight), pending, idle)?;
            let device = self.main.0.clone().inner();
            let others = others.into_iter().map(|loss| loss.to_device(&device));
            Ok((grads, others.fold(own.mul_scalar(weight), |sum, loss| sum + loss)))
        })
    }
}
