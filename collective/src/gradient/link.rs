//! How a bucket leaves, and what comes back.

use super::{
    buckets::Plan,
    hook::{Bucket, CommHook},
};
use crate::{ProcessGroup, ReduceOp, Result, Work};
use std::sync::Arc;

/// Where buckets go.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub group: ProcessGroup,
    pub hook: Option<Arc<dyn CommHook>>,
}

/// What came back.
#[derive(Default)]
pub(super) struct Landing {
    pub buffers: Vec<Vec<f32>>,
    /// Ranks on which each parameter had a gradient that counts.
    pub users: Vec<usize>,
    /// Why the sums are not those of the gradients that backward left, on any rank.
    pub again: Option<String>,
}

impl Link {
    /// Reduces a bucket in the background.
    pub fn send(&self, plan: &Arc<Plan>, index: usize, mut buffer: Vec<f32>) -> Result<Work<Vec<f32>>> {
        let (plan, hook) = (plan.clone(), self.hook.clone());
        self.group.start(move |group| {
            let Some(hook) = hook else {
                return group.all_reduce(&mut buffer, ReduceOp::Sum).map(|()| buffer);
            };
            let (values, totals) = buffer.split_at_mut(plan.length(index));
            hook.reduce(&mut Bucket::new(index, &plan, values), group).inspect_err(|error| {
                // The other ranks need not wait for a rank whose hook gave up.
                if group.failure().is_none() {
                    group.abort(format!("communication hook {}: {error}", hook.name()));
                }
            })?;
            if !totals.is_empty() {
                group.all_reduce(totals, ReduceOp::Sum)?;
            }
            Ok(buffer)
        })
    }
}
