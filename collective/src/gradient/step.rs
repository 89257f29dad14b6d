//! One synchronised step: averages the ranks' gradients over the global batch.

use super::{
    Reducer,
    accumulate::Weights,
    agreement::Agreement,
    buckets::BucketPlan,
    clip::global_norm,
    closed_buckets::{ClosedBuckets, ReducedGradients},
    in_flight::InFlightReduction,
    step_buckets::StepBuckets,
    timed,
    watch::watch,
};
use crate::{
    Error, Result,
    batch_context::BatchContext,
    parameters::{TensorList, put, reshaped, take, values},
    precision::Precision,
};
use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};
use std::{sync::Arc, time::Instant};

/// The result of a step.
pub(crate) struct FinishedStep {
    pub grads: GradientsParams,
    /// Sums of the totals over all ranks.
    pub totals: Option<Tensor<1>>,
    /// The agreement on the flags, for which [`Reducer::settle`] waits.
    pub flags: Agreement,
}

/// A reduction that continues in the background, until [`Reducer::complete`] waits for it.
pub(crate) enum LaunchedReduction {
    /// Gradients and flags, in a world of one.
    Alone(GradientsParams, Vec<f32>),
    Buckets(Box<ClosedBuckets>),
}

/// A step in progress, from [`Reducer::step`]. Every rank must finish it.
#[must_use = "the other ranks wait until it is finished"]
pub struct Step<'a> {
    reducer: &'a mut Reducer,
    weights: Weights,
    pub(crate) context: BatchContext,
    /// `None` in a world of one without a device transport.
    reduction: Option<Arc<InFlightReduction>>,
}

impl Reducer {
    /// Starts a synchronised step of `samples` on this rank, 0 for padding.
    ///
    /// `global_samples` is the number of samples over all ranks, including batches accumulated since the last step.
    pub fn step(&mut self, samples: usize, global_samples: usize) -> Step<'_> {
        // The loss scale applies to all gradients.
        let global = global_samples.max(1) as f64 * f64::from(self.loss_scale());
        let accumulated = (!self.accumulated.is_empty()).then(|| (1.0 / global) as f32);
        let weights = Weights { own: (samples as f64 / global) as f32, accumulated };
        let context = BatchContext::new(samples, global_samples, self.loss_scale());
        let mut step = Step { reducer: self, weights, context, reduction: None };
        step.reduction = step.start();
        step
    }

    /// Ends the wait of the other ranks at once.
    fn abort(&self, error: &Error) {
        if let Some(sender) = &self.sender {
            sender.group.abort(error.to_string());
        }
    }

    /// Waits for a reduction. Returns the averaged gradients of `module`, and the sums of the flags.
    ///
    /// # Errors
    /// If the group fails.
    pub(crate) fn complete<M: Module>(
        &mut self,
        launched: LaunchedReduction,
        module: &M,
    ) -> Result<(GradientsParams, Vec<f32>)> {
        let buckets = match launched {
            LaunchedReduction::Alone(grads, flags) => return Ok((grads, flags)),
            LaunchedReduction::Buckets(buckets) => buckets,
        };
        let (gradients, agreed) = timed("wait for gradients", &mut self.waited, || {
            let mut reduced = buckets.wait()?;
            Ok::<_, Error>((reduced.gradients, reduced.agreement.wait()?))
        })?;
        Ok((averaged(&self.plan, &gradients, &agreed.users, module), agreed.flags))
    }
}

impl Step<'_> {
    /// Returns a copy of `module` for one forward and backward pass.
    ///
    /// The copy computes the same values; pass its gradients to [`finish`](Step::finish). In the copy,
    /// [`Param::val`](burn::module::Param::val) is not a leaf of autodiff: read the gradient of the parameter, not
    /// of its value.
    pub fn watch<M: Module>(&self, module: &M) -> M {
        self.watch_in(self.reducer.precision, module)
    }

    /// [`watch`](Step::watch) with parameters cast to `precision`. Several copies may compute parts of the step.
    pub(crate) fn watch_in<M: Module>(&self, precision: Precision, module: &M) -> M {
        let reduction = self.reduction.as_ref().filter(|_| self.reducer.overlap);
        watch(module, reduction.map(|reduction| (reduction, &self.reducer.anchors)), precision)
    }

    /// Runs `act`, the forward and backward pass of this step.
    ///
    /// It sets the weight of this rank's batch in [`SyncBatchNorm`](crate::sync_batch_norm::SyncBatchNorm) and the
    /// loss scale of [`precision::backward`](crate::precision::backward). Outside of it, all ranks' batches have
    /// equal weight and the loss is not scaled.
    pub fn scope<R>(&mut self, act: impl FnOnce() -> R) -> R {
        self.context.scope(act)
    }

    /// When the first gradient arrived; `None` before, and without overlap.
    pub(crate) fn first_arrival(&self) -> Option<Instant> {
        self.reduction.as_ref()?.with(|buckets| buckets.first_arrival)?
    }

    /// Waits for all buckets and returns the gradients averaged over the global batch.
    ///
    /// The result has the same bits on every rank. `grads` are backward's unchanged gradients of a mean over this
    /// rank's samples. `totals` are summed over all ranks.
    ///
    /// In a world of one, the result is `grads` with the accumulated gradients. In f16, no gradients are returned if
    /// one is not finite: the optimizer then skips the step, and [`Reducer::skipped`] is true.
    ///
    /// # Errors
    /// If the group fails, a gradient cannot be read from its device, or `module` has other
    /// trainable parameters than when the reducer was created. In f16, if the loss was not scaled, and
    /// [`Error::LossScale`] if gradients still overflow at the smallest loss scale.
    pub fn finish<M: Module>(
        self,
        grads: GradientsParams,
        module: &M,
        totals: &mut Vec<f32>,
    ) -> Result<GradientsParams> {
        let mut finished = self.finish_with(grads, module, None, totals.clone(), true)?;
        *totals = finished.flags.wait()?.flags;
        Ok(finished.grads)
    }

    /// Starts the reduction of gradients that no later call changes, and the sums of `flags`. Every rank must call it.
    ///
    /// Not with overlap, accumulation or f16.
    ///
    /// # Errors
    /// If the group fails, or a gradient cannot be read from its device.
    pub(crate) fn launch<M: Module>(
        mut self,
        mut grads: GradientsParams,
        module: &M,
        flags: Vec<f32>,
    ) -> Result<LaunchedReduction> {
        let Some(mut buckets) = self.reduction.take().and_then(|reduction| reduction.end()) else {
            return Ok(LaunchedReduction::Alone(grads, flags));
        };
        let closed =
            buckets.collect(take(&mut grads, module), module).and_then(|()| buckets.close(None, &flags));
        let closed = closed.inspect_err(|error| self.reducer.abort(error))?;
        Ok(LaunchedReduction::Buckets(Box::new(closed)))
    }

    /// [`finish`](Step::finish) with totals `[n]` on a device, returned as sums over all ranks.
    ///
    /// The totals stay on the device if the gradients do. `flags` are summed on the host. Unless `wait` is set, their
    /// sums may be in progress if gradients stay on the device, this rank has one of every parameter, and the ranks
    /// have agreed on an earlier step.
    ///
    /// # Errors
    /// Those of [`finish`](Step::finish), and if the totals cannot be read from the device.
    pub(crate) fn finish_with<M: Module>(
        mut self,
        mut grads: GradientsParams,
        module: &M,
        totals: Option<Tensor<1>>,
        flags: Vec<f32>,
        wait: bool,
    ) -> Result<FinishedStep> {
        if self.reducer.scaler.is_some() && !self.context.scaled {
            return Err(Error::Invalid(
                "precision f16: the training step did not scale its loss; register the model's ParallelStep with Trainer::data_parallel() or DdpStrategy::with_parallel_step(), or call burn_ddp::precision::backward(&loss) in place of loss.backward()".into(),
            ));
        }
        let Some(reduction) = self.reduction.take() else {
            // Padding, of local SGD, has no gradients.
            let has_samples = self.weights.own > 0.0;
            let alone = has_samples && self.reducer.scaler.is_none() && self.reducer.accumulated.is_empty();
            let mean = if alone { grads } else { self.reducer.accumulated.mean(grads, module, self.weights) };
            let flags = Agreement::alone(flags);
            return Ok(FinishedStep { grads: self.unless_infinite(mean, module)?, totals, flags });
        };
        let early = !wait && self.reducer.on_device && self.reducer.agreed;
        let mut own = take(&mut grads, module);
        let mut reduced = self.reduce(&reduction, &mut own, module, totals.clone(), &flags)?;
        let users = if early && reduced.agreement.complete {
            vec![1; self.reducer.plan.slots.len()]
        } else {
            let mut agreed =
                timed("wait for gradients", &mut self.reducer.waited, || reduced.agreement.wait())?;
            if early {
                agreed.unanimous()?;
            }
            if let Some((reason, _)) = agreed.again.take() {
                // Repeats the reduction from backward's gradients; later steps do not overlap.
                self.reducer.overlap = false;
                self.reducer.fallback = Some(reason);
                if let Some(reduction) = self.start() {
                    reduced = self.reduce(&reduction, &mut own, module, totals, &flags)?;
                    agreed =
                        timed("wait for gradients", &mut self.reducer.waited, || reduced.agreement.wait())?;
                }
            }
            self.reducer.agreed = true;
            self.reducer.users.clone_from(&agreed.users);
            agreed.users
        };
        self.reducer.accumulated.clear();
        let averaged = averaged(&self.reducer.plan, &reduced.gradients, &users, module);
        // In the order of the parameters. That of a map differs from rank to rank, and on a GPU the operations that free
        // them are in one queue with those of the optimizer, whose fusion and thereby rounding could depend on it.
        drop(own);
        let grads = self.unless_infinite(averaged, module)?;
        Ok(FinishedStep { grads, totals: reduced.totals, flags: reduced.agreement })
    }

    /// Starts the reduction of this step's gradients and the accumulated ones; `None` in a world of one without a
    /// device transport.
    fn start(&self) -> Option<Arc<InFlightReduction>> {
        let Reducer { plan, sender, accumulated, on_device, .. } = &*self.reducer;
        let sender = sender.clone()?;
        let buckets = StepBuckets::new(plan.clone(), sender, *on_device, self.weights, accumulated);
        Some(Arc::new(InFlightReduction::new(buckets)))
    }

    fn reduce<M: Module>(
        &mut self,
        reduction: &InFlightReduction,
        own: &mut TensorList,
        module: &M,
        totals: Option<Tensor<1>>,
        flags: &[f32],
    ) -> Result<ReducedGradients> {
        // With overlap, a repetition may need them.
        let grads = if self.reducer.overlap { own.clone() } else { std::mem::take(own) };
        // `Step` finishes a reduction once.
        let mut buckets = reduction.end().expect("a reduction in progress");
        let reduced = buckets.collect(grads, module).and_then(|()| {
            timed("wait for gradients", &mut self.reducer.waited, || buckets.close(totals, flags)?.wait())
        });
        reduced.inspect_err(|error| self.reducer.abort(error))
    }

    /// In f16, returns no gradients if one of them is not finite. All ranks decide equally.
    fn unless_infinite<M: Module>(
        &mut self,
        mut grads: GradientsParams,
        module: &M,
    ) -> Result<GradientsParams> {
        if self.reducer.scaler.is_none() {
            return Ok(grads);
        }
        let all = take(&mut grads, module);
        let finite = global_norm(&all, Some(self.reducer))?.is_finite();
        self.reducer.scaler.as_mut().map_or(Ok(()), |scaler| scaler.update(finite))?;
        if !finite {
            return Ok(GradientsParams::new());
        }
        put(&mut grads, all, module);
        Ok(grads)
    }
}

/// Averaged gradients of `module`, without those of parameters that no rank used and those that other ranks update.
/// `parts` are theirs, by slot.
fn averaged<M: Module>(
    plan: &BucketPlan,
    parts: &[Option<Tensor<1>>],
    users: &[usize],
    module: &M,
) -> GradientsParams {
    let gradient = |(id, value): (ParamId, Tensor<1>)| {
        let slot = plan.slot_of(id).filter(|slot| users[*slot] > 0 && plan.is_updated(*slot))?;
        let gradient = reshaped(parts[slot].clone()?, value.shape()).to_device(&value.device());
        Some((id, gradient.cast(FloatDType::from(value.dtype()))))
    };
    let mut grads = GradientsParams::new();
    put(&mut grads, values(module, true).into_iter().filter_map(gradient).collect(), module);
    grads
}
