//! The gradient buckets of one step, while their reductions are in progress and none is left to start.

use super::{
    agreement::{Agreement, Sums},
    buckets::BucketPlan,
    read::on_host,
};
use crate::{
    Result, Work,
    tensor::{self, Reduction},
};
use burn::tensor::Tensor;
use std::sync::Arc;

/// Sums over all ranks.
pub(super) struct ReducedGradients {
    /// Views of the buckets, by slot; `None` if another rank updates the parameter.
    pub gradients: Vec<Option<Tensor<1>>>,
    /// Sums of the totals.
    pub totals: Option<Tensor<1>>,
    /// What the ranks agree on, on a device still in progress.
    pub agreement: Agreement,
}

/// The buckets of a step whose reductions have all started.
pub(crate) struct ClosedBuckets {
    pub(super) plan: Arc<BucketPlan>,
    pub(super) sums: ClosedSums,
    /// Number of the caller's flags.
    pub(super) flags: usize,
    /// 1 for each parameter with a gradient of this rank's samples, and for a rank with samples.
    pub(super) users: Vec<f32>,
    /// Reason why the buckets differ from the gradients that backward returned.
    pub(super) spoiled: Option<String>,
    pub(super) ranks: usize,
}

/// Sums in progress of gradients, totals, and the ranks' messages.
pub(super) enum ClosedSums {
    /// The last bucket is followed by `tail` values: the totals, if there are any, and the message.
    Host { started: Vec<Work<Vec<f32>>>, totals: Option<usize>, tail: usize },
    /// The last bucket is followed by `tail` totals, unless they follow the buckets.
    Device { started: Vec<Option<Reduction>>, tail: usize, message: Work<Vec<f32>> },
}

impl ClosedBuckets {
    /// Waits for the sums. In device memory, only the device waits.
    ///
    /// # Errors
    /// If the group fails.
    pub(super) fn wait(self) -> Result<ReducedGradients> {
        let Self { plan, sums, flags, users, spoiled, ranks } = self;
        let (gradients, totals, sums) = match sums {
            ClosedSums::Host { started, totals, tail } => {
                let mut buckets = started.into_iter().map(Work::wait).collect::<Result<Vec<_>>>()?;
                let last = &mut buckets[plan.buckets() - 1];
                let mut summed = last.split_off(last.len() - tail);
                let sums = summed.split_off(totals.unwrap_or(0));
                let own = |(index, bucket)| (!plan.is_foreign(index)).then(|| on_host(bucket));
                let (gradients, _) = plan.split(buckets.into_iter().enumerate().map(own).collect(), 0);
                (gradients, totals.map(|_| on_host(summed)), Sums::Known(sums))
            }
            ClosedSums::Device { started, tail, message } => {
                let mut buckets = tensor::finish(started);
                let alone = buckets.pop().flatten();
                let (gradients, carried) = plan.split(buckets, tail);
                (gradients, carried.or(alone), Sums::InProgress(message))
            }
        };
        let agreement = Agreement::new(sums, flags, &users, spoiled, ranks);
        Ok(ReducedGradients { gradients, totals, agreement })
    }
}
