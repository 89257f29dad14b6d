//! One step's gradients on their way: each is written into its bucket when it is final, and a bucket
//! leaves when it is full and all before it have left. Buckets therefore travel in the same order on
//! every rank, in whichever order gradients come.

use super::{
    buckets::Plan,
    host::{Values, f32s},
    link::{Landing, Link},
    watch::Ladder,
};
use crate::{Error, Result, Work};
use burn::module::ParamId;
use burn::tensor::{Device, Tensor, TensorData};
use std::{
    fmt,
    hash::{DefaultHasher, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// What this rank's gradients count in the mean over the global batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    /// Of this step's gradient, which is a mean over this rank's samples. 0 for a rank that only
    /// keeps in step: its gradients are not looked at.
    pub own: f32,
    /// Of what was carried over from steps that were not synchronised, a sum over samples.
    pub carried: Option<f32>,
}

pub(super) struct Flight {
    plan: Arc<Plan>,
    link: Link,
    ladder: Arc<Ladder>,
    weights: Weights,
    /// Elements of each gradient that are compared with what backward left.
    compared: usize,
    state: Mutex<State>,
}

struct State {
    /// Uses of parameters in forward.
    uses: usize,
    /// Of each parameter those whose gradients have not come back.
    pending: Vec<usize>,
    /// Whether a gradient is in its bucket.
    written: Vec<bool>,
    /// Whether there was a gradient that counts.
    used: Vec<bool>,
    /// Gradients that each bucket waits for.
    missing: Vec<usize>,
    /// Where nothing is carried over, they have room only, of no length until all gradients are written:
    /// clearing it first costs half as much as writing them. Without room once it has left.
    buffers: Vec<Vec<f32>>,
    left: Vec<Work<Vec<f32>>>,
    /// Of the first elements of each gradient that was seen on the way.
    digests: Vec<Option<u64>>,
    /// Why what has left is not what should have.
    spoiled: Option<String>,
    failure: Option<Error>,
    landed: bool,
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flight({} buckets)", self.plan.buckets())
    }
}

impl Flight {
    /// `buffers` have room for all gradients, or hold what is carried over, and `used` says for which
    /// parameters.
    pub fn new(
        plan: Arc<Plan>,
        link: Link,
        ladder: Arc<Ladder>,
        weights: Weights,
        buffers: Vec<Vec<f32>>,
        used: Vec<bool>,
        compared: usize,
    ) -> Self {
        let slots = plan.slots.len();
        let state = State {
            uses: 0,
            pending: vec![0; slots],
            written: vec![false; slots],
            used,
            missing: plan.members.iter().map(Vec::len).collect(),
            buffers,
            left: Vec::new(),
            digests: vec![None; slots],
            spoiled: None,
            failure: None,
            landed: false,
        };
        Self { plan, link, ladder, weights, compared, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn slot_of(&self, id: ParamId) -> Option<usize> {
        self.plan.slot_of(id)
    }

    /// A parameter is used in forward. Returns the anchor of this use, or None if it is not to be
    /// watched: the step is over, or its device is not that of the others.
    pub fn used(&self, slot: usize, device: &Device) -> Option<Tensor<1>> {
        let mut state = self.state();
        if state.landed {
            return None;
        }
        let anchor = self.ladder.anchor(state.uses, device)?;
        state.uses += 1;
        state.pending[slot] += 1;
        if state.written[slot] {
            state.spoil("a parameter was used again after backward", &self.plan, slot);
        }
        Some(anchor)
    }

    /// The gradient of one use has come, and `read` gives the sum of all that have.
    pub fn arrived(&self, slot: usize, read: impl FnOnce() -> Result<Values, String>) {
        let mut state = self.state();
        state.pending[slot] = state.pending[slot].saturating_sub(1);
        if state.landed || state.written[slot] {
            return state.spoil("a gradient changed after it was complete", &self.plan, slot);
        }
        if state.pending[slot] > 0 {
            return;
        }
        let written = if self.weights.own > 0.0 {
            read().and_then(|grad| {
                let grad = grad.as_f32()?;
                state.digests[slot] = Some(digest(&grad, self.compared));
                state.write(&self.plan, self.weights, slot, Some(&grad))
            })
        } else {
            state.write(&self.plan, self.weights, slot, None)
        };
        match written {
            Ok(()) => self.depart(&mut state, self.plan.buckets() - 1),
            Err(reason) => state.fail(&self.plan, slot, reason),
        }
    }

    /// Whether a gradient is in its bucket already. If not, one may still arrive from another thread.
    pub fn has(&self, slot: usize) -> bool {
        self.state().written[slot]
    }

    /// Writes what backward left of a parameter that was not seen on the way; `None` if nothing.
    /// Returns false, and writes nothing, if the gradient has arrived after all.
    pub fn write(&self, slot: usize, grad: Option<TensorData>) -> bool {
        let mut state = self.state();
        if state.written[slot] {
            return false;
        }
        let grad = grad.filter(|_| self.weights.own > 0.0);
        let grad = grad.as_ref().map(f32s).transpose();
        let written = grad.and_then(|grad| state.write(&self.plan, self.weights, slot, grad.as_deref()));
        if let Err(reason) = written {
            state.fail(&self.plan, slot, reason);
        }
        true
    }

    /// How many elements of a gradient that was seen on the way are to be compared with what backward
    /// left.
    pub fn compared(&self) -> usize {
        if self.weights.own > 0.0 { self.compared } else { 0 }
    }

    /// Compares them; `None` if backward's gradient is not there any more. A gradient that was not seen
    /// on the way, but written when its parameter was met first, is what backward left.
    pub fn compare(&self, slot: usize, first: Option<&TensorData>) {
        let mut state = self.state();
        let Some(seen) = state.digests[slot] else { return };
        let now = first.and_then(|first| Some(digest(&f32s(first).ok()?, self.compared)));
        if now != Some(seen) {
            state.spoil("a gradient was changed after backward", &self.plan, slot);
        }
    }

    /// Sends all that is left, with `totals` behind the last bucket, and waits for everything.
    /// Returns the buckets' sums; `totals` become sums too. Behind the caller's totals travels how
    /// many ranks used each parameter, and how many ranks want the step done again.
    ///
    /// # Errors
    /// The first one, on this rank or in the group.
    pub fn land(&self, totals: &mut Vec<f32>) -> Result<Landing> {
        let mut state = self.state();
        state.landed = true;
        if let Some(failure) = state.failure.take() {
            self.link.group.abort(failure.to_string());
            return Err(failure);
        }
        let own = totals.len();
        totals.extend(state.used.iter().map(|used| f32::from(u8::from(*used))));
        totals.push(f32::from(u8::from(state.spoiled.is_some())));
        let last = self.plan.buckets() - 1;
        state.buffers[last].extend_from_slice(totals);
        self.depart(&mut state, self.plan.buckets());
        let (left, spoiled, failure) =
            (std::mem::take(&mut state.left), state.spoiled.take(), state.failure.take());
        drop(state);
        if let Some(failure) = failure {
            return Err(failure);
        }
        if left.len() <= last {
            let gone = "a parameter that was there when the reducer was made is gone: make a new reducer";
            self.link.group.abort(gone);
            return Err(Error::Invalid(gone.into()));
        }
        let mut buffers = left.into_iter().map(Work::wait).collect::<Result<Vec<_>>>()?;
        let tail = buffers[last].split_off(self.plan.length(last));
        totals.truncate(own);
        totals.copy_from_slice(&tail[..own]);
        let users = tail[own..tail.len() - 1].iter().map(|ranks| *ranks as usize).collect();
        let again = (tail[tail.len() - 1] > 0.0)
            .then(|| spoiled.unwrap_or_else(|| "another rank could not overlap".into()));
        Ok(Landing { buffers, users, again })
    }

    /// Sends the buckets below `end` that are full, in order.
    fn depart(&self, state: &mut State, end: usize) {
        while state.left.len() < end && state.missing[state.left.len()] == 0 && state.failure.is_none() {
            let index = state.left.len();
            match self.link.send(&self.plan, index, std::mem::take(&mut state.buffers[index])) {
                Ok(work) => state.left.push(work),
                Err(error) => state.failure = Some(error),
            }
        }
    }
}

impl State {
    fn write(
        &mut self,
        plan: &Plan,
        weights: Weights,
        slot: usize,
        grad: Option<&[f32]>,
    ) -> Result<(), String> {
        let place = &plan.slots[slot];
        if let Some(from) = grad.filter(|from| from.len() != place.range.len()) {
            return Err(format!("it has {} elements", from.len()));
        }
        let buffer = &mut self.buffers[place.bucket];
        match (grad, weights.carried) {
            (Some(from), None) => {
                let to = &mut buffer.spare_capacity_mut()[place.range.clone()];
                to.iter_mut().zip(from).for_each(|(to, from)| _ = to.write(from * weights.own));
            }
            (None, None) => {
                let to = &mut buffer.spare_capacity_mut()[place.range.clone()];
                to.iter_mut().for_each(|to| _ = to.write(0.0));
            }
            (Some(from), Some(carried)) => {
                let to = &mut buffer[place.range.clone()];
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *to * carried + from * weights.own);
            }
            (None, Some(carried)) => buffer[place.range.clone()].iter_mut().for_each(|to| *to *= carried),
        }
        self.used[slot] |= grad.is_some();
        self.written[slot] = true;
        self.missing[place.bucket] -= 1;
        if self.missing[place.bucket] == 0 {
            // SAFETY: there is room for a bucket, and all of its gradients, which lie side by side, are
            // written.
            unsafe { buffer.set_len(plan.length(place.bucket)) };
        }
        Ok(())
    }

    fn spoil(&mut self, what: &str, plan: &Plan, slot: usize) {
        self.spoiled.get_or_insert_with(|| format!("{what}: {}", plan.slots[slot].path));
    }

    fn fail(&mut self, plan: &Plan, slot: usize, reason: String) {
        let what = format!("reading the gradient of {}", plan.slots[slot].path);
        self.failure.get_or_insert(Error::Io { what, reason });
    }
}

fn digest(grad: &[f32], elements: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytemuck::cast_slice(&grad[..elements.min(grad.len())]));
    hasher.finish()
}

#[cfg(test)]
mod tests;
