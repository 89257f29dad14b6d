//! All-reduce of gradients between the replicas of a process, each in its own thread.
//!
//! Every replica receives the sums; those of the main device are used. Between NVIDIA GPUs NCCL reduces them, with
//! a communicator per device.

use crate::{
    DevicePath, Error, Options, ProcessGroup, Result,
    gradient::{BucketSizes, buckets::BucketPlan, module_gradients},
    transport::nccl::DeviceSite,
};
use burn::{module::Module, optim::GradientsParams};
use std::sync::Arc;

/// One replica's member of the exchange.
pub(super) struct Exchange {
    group: ProcessGroup,
    /// The group of all replicas over which SyncBatchNorm synchronises its statistics, if it is enabled.
    statistics: Option<ProcessGroup>,
    site: Option<Arc<dyn DeviceSite>>,
    plan: Arc<BucketPlan>,
}

impl Exchange {
    /// Creates a member for each of `count` replicas of `module`.
    ///
    /// Reduction is in device memory if there are `sites`, otherwise in host memory. `statistics` are the groups of
    /// SyncBatchNorm, which use the same memory; empty without it.
    ///
    /// # Errors
    /// If there are sites, but not one for each replica.
    pub fn all<M: Module>(
        module: &M,
        count: usize,
        sites: &[Arc<dyn DeviceSite>],
        statistics: &[ProcessGroup],
    ) -> Result<Vec<Self>> {
        if !sites.is_empty() && sites.len() != count {
            return Err(Error::Invalid(format!("{} NCCL devices for {count} replicas", sites.len())));
        }
        // One bucket, because the reduction does not overlap with backward.
        let plan = Arc::new(BucketPlan::new(module, BucketSizes { first: usize::MAX, rest: usize::MAX }));
        let end = |(at, group)| Exchange {
            group,
            statistics: statistics.get(at).cloned(),
            site: sites.get(at).cloned(),
            plan: plan.clone(),
        };
        Ok(ProcessGroup::threads(count, Options::default())?.into_iter().enumerate().map(end).collect())
    }

    /// Creates the communicators. Every replica must call it, on the thread on which it computes.
    ///
    /// # Errors
    /// If NCCL cannot be used.
    pub fn open(&self) -> Result<()> {
        let Some(site) = &self.site else { return Ok(()) };
        for group in [Some(&self.group), self.statistics.as_ref()].into_iter().flatten() {
            if let DevicePath::Host(why) = group.attach(Ok(site.clone()))? {
                return Err(Error::Invalid(format!(
                    "the replicas cannot exchange data with NCCL: {why}. Choose another gradient reduction, such as main or tree"
                )));
            }
        }
        Ok(())
    }

    /// Reduces the gradients, without those of parameters for which no replica has one.
    ///
    /// Every replica must call it.
    ///
    /// # Errors
    /// If the group fails.
    pub fn sums<M: Module>(&self, gradients: GradientsParams, module: &M) -> Result<GradientsParams> {
        module_gradients::all_reduce(&self.plan, &self.group, gradients, module)
    }

    /// Wakes the replicas that wait for a failed one.
    pub fn abort(&self, reason: &str) {
        [Some(&self.group), self.statistics.as_ref()]
            .into_iter()
            .flatten()
            .for_each(|group| group.abort(reason));
    }
}
