//! One synchronised step: from each rank's gradients to the global batch's.

use super::{
    Reducer,
    clip::global_norm,
    flight::{Flight, Weights},
    link::Landing,
    on_device, timed, visit, watch,
};
#[cfg(doc)]
use crate::Error;
use crate::Result;
use burn::module::Module;
use burn::optim::GradientsParams;
use std::sync::Arc;

/// Elements of each gradient that are compared, in steps after the first, with what backward left.
const SPOT: usize = 64;

/// A step under way, from [`Reducer::step`]. Every rank must finish it.
#[must_use = "the other ranks wait until it is finished"]
pub struct Step<'a> {
    reducer: &'a mut Reducer,
    weights: Weights,
    /// In a world of more than one.
    flight: Option<Arc<Flight>>,
}

impl<'a> Step<'a> {
    pub(super) fn begin<M: Module>(
        reducer: &'a mut Reducer,
        module: &M,
        samples: usize,
        global_samples: usize,
    ) -> Result<Self> {
        // Losses, and so all gradients, are scaled.
        let global = global_samples.max(1) as f64 * f64::from(reducer.loss_scale());
        let carried = (!reducer.carry.is_empty()).then(|| (1.0 / global) as f32);
        let weights = Weights { own: (samples as f64 / global) as f32, carried };
        let mut step = Step { reducer, weights, flight: None };
        step.flight = step.fly(module, true)?;
        Ok(step)
    }

    /// The copy of `module` on which to run forward and backward, once. It computes what `module`
    /// does; its gradients are [`finish`](Step::finish)ed for `module`.
    ///
    /// Inside, [`Param::val`](burn::module::Param::val) is no leaf of autodiff, so ask a gradient of
    /// the parameter itself, not of its value.
    pub fn watch<M: Module>(&self, module: &M) -> M {
        let flight = self.flight.as_ref().filter(|_| self.reducer.overlap);
        watch::watch(module, flight, self.reducer.precision)
    }

    /// Waits for all buckets and returns the gradients of the mean over the global batch, the same
    /// bits on every rank. `grads` are what backward left, unchanged, of a mean over this rank's
    /// samples. `totals` are summed over all ranks on the way.
    ///
    /// In a world of one, gradients are returned as they are, with what was accumulated. In f16, none are
    /// returned if one is not finite: the optimizer then skips the step, as [`Reducer::skipped`] tells.
    ///
    /// # Errors
    /// If the group fails, a gradient cannot be read from its device, or `module` has other
    /// trainable parameters than it had when the reducer was made. In f16, [`Error::LossScale`] if
    /// gradients still overflow at the smallest loss scale.
    pub fn finish<M: Module>(
        mut self,
        mut grads: GradientsParams,
        module: &M,
        totals: &mut Vec<f32>,
    ) -> Result<GradientsParams> {
        if let Some(scaler) = &self.reducer.scaler {
            scaler.expect_scaled()?;
        }
        if self.reducer.on_device {
            return self.finish_on_device(grads, module, totals);
        }
        let Some(flight) = self.flight.take() else {
            let alone = self.reducer.scaler.is_none() && self.reducer.carry.is_empty();
            let mean = if alone { grads } else { self.reducer.carry.mean(grads, module, self.weights) };
            return self.unless_infinite(mean, module);
        };
        let backup = totals.clone();
        let mut landing = self.land(&flight, &mut grads, module, totals)?;
        if let Some(reason) = landing.again.take() {
            totals.clone_from(&backup);
            landing = self.again(reason, &mut grads, module, totals)?;
        }
        self.reducer.carry.clear();
        self.reducer.compared |= self.reducer.overlap;
        let Landing { buffers, users, .. } = landing;
        let averaged = visit::scatter(&self.reducer.plan, buffers, &users, module);
        self.reducer.users = users;
        self.unless_infinite(averaged, module)
    }

    fn finish_on_device<M: Module>(
        &mut self,
        grads: GradientsParams,
        module: &M,
        totals: &mut Vec<f32>,
    ) -> Result<GradientsParams> {
        let Some(link) = self.reducer.link.clone() else { return Ok(grads) };
        let own = self.reducer.carry.mean(grads, module, self.weights);
        let Reducer { waited, plan, .. } = &mut *self.reducer;
        let (grads, users) = timed(waited, || on_device::reduce(plan, &link.group, own, module, totals))?;
        self.reducer.users = users;
        self.unless_infinite(grads, module)
    }

    /// In f16, no gradients if one of them is not finite, which is so on all ranks or on none.
    fn unless_infinite<M: Module>(&mut self, grads: GradientsParams, module: &M) -> Result<GradientsParams> {
        let Some(scaler) = &mut self.reducer.scaler else { return Ok(grads) };
        let finite = global_norm(&grads, module)?.is_finite();
        scaler.update(finite)?;
        Ok(if finite { grads } else { GradientsParams::new() })
    }

    /// The same from the gradients that backward left; no step overlaps any more.
    fn again<M: Module>(
        &mut self,
        reason: String,
        grads: &mut GradientsParams,
        module: &M,
        totals: &mut Vec<f32>,
    ) -> Result<Landing> {
        self.reducer.overlap = false;
        self.reducer.fallback = Some(reason);
        match self.fly(module, false)? {
            Some(flight) => self.land(&flight, grads, module, totals),
            None => Ok(Landing::default()),
        }
    }

    fn land<M: Module>(
        &mut self,
        flight: &Flight,
        grads: &mut GradientsParams,
        module: &M,
        totals: &mut Vec<f32>,
    ) -> Result<Landing> {
        // With overlap they may be needed again.
        let keep = self.reducer.overlap;
        visit::gather(flight, grads, module, keep).inspect_err(|error| {
            // The other ranks need not wait for what this one cannot send.
            if let Some(link) = &self.reducer.link {
                link.group.abort(error.to_string());
            }
        })?;
        timed(&mut self.reducer.waited, || flight.land(totals))
    }

    fn fly<M: Module>(&mut self, module: &M, compare: bool) -> Result<Option<Arc<Flight>>> {
        let Some(link) = self.reducer.link.clone().filter(|_| !self.reducer.on_device) else {
            return Ok(None);
        };
        let mut buffers = self.reducer.buffers();
        let (plan, ladder) = (self.reducer.plan.clone(), self.reducer.ladder.clone());
        let used = self.reducer.carry.fill(module, &plan, &mut buffers)?;
        let compared = match (compare && self.reducer.overlap, self.reducer.compared) {
            (false, _) => 0,
            (true, false) => usize::MAX,
            (true, true) => SPOT,
        };
        Ok(Some(Arc::new(Flight::new(plan, link, ladder, self.weights, buffers, used, compared))))
    }
}
