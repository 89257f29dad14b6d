//! An all-reduce between the replicas of a process, each in its own thread. Every replica gets the sums of
//! all gradients, of which the main device's are used. Between NVIDIA GPUs NCCL reduces them, with a
//! communicator for each device.

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
    /// The group of all replicas in which SyncBatchNorm takes its statistics, if there is one.
    statistics: Option<ProcessGroup>,
    site: Option<Arc<dyn DeviceSite>>,
    plan: Arc<BucketPlan>,
}

impl Exchange {
    /// A member for each of `count` replicas of `module`; in device memory with their `sites`, if there are
    /// any, else through the host's. `statistics` are SyncBatchNorm's groups, which go the same way; empty
    /// without it.
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
        // All of it in one piece: nothing overlaps with backward here.
        let plan = Arc::new(BucketPlan::new(module, BucketSizes { first: usize::MAX, rest: usize::MAX }));
        let end = |(at, group)| Exchange {
            group,
            statistics: statistics.get(at).cloned(),
            site: sites.get(at).cloned(),
            plan: plan.clone(),
        };
        Ok(ProcessGroup::threads(count, Options::default())?.into_iter().enumerate().map(end).collect())
    }

    /// Makes the communicators. Every replica must call it, on the thread on which it will compute.
    ///
    /// # Errors
    /// If NCCL cannot be used.
    pub fn open(&self) -> Result<()> {
        let Some(site) = &self.site else { return Ok(()) };
        for group in [Some(&self.group), self.statistics.as_ref()].into_iter().flatten() {
            if let DevicePath::Host(why) = group.attach(Ok(site.clone()))? {
                return Err(Error::Invalid(format!(
                    "the replicas cannot exchange data with NCCL: {why}. Choose another way to reduce gradients, such as one device after the other"
                )));
            }
        }
        Ok(())
    }

    /// The sums of all replicas' gradients, without those of parameters that none has one for. Every
    /// replica must call it.
    ///
    /// # Errors
    /// If the group fails.
    pub fn sums<M: Module>(&self, gradients: GradientsParams, module: &M) -> Result<GradientsParams> {
        module_gradients::all_reduce(&self.plan, &self.group, gradients, module)
    }

    /// Wakes replicas that wait for one that failed.
    pub fn abort(&self, reason: &str) {
        [Some(&self.group), self.statistics.as_ref()]
            .into_iter()
            .flatten()
            .for_each(|group| group.abort(reason));
    }
}
