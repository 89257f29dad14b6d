//! All-reduce of gradients between the replicas of a process, each in its own thread.
//!
//! Every replica receives the sums; those of the main device are used. Between NVIDIA GPUs NCCL reduces them, with
//! a communicator per device.

use crate::{
    DevicePath, Error, Options, ProcessGroup, Result,
    gradient::{BucketSizes, Reducer, ReducerOptions},
    transport::nccl::DeviceSite,
};
use burn::{module::Module, optim::GradientsParams};
use std::sync::Arc;

/// One replica's member of the exchange, before it is [opened](Self::open).
pub(super) struct Member {
    /// The group of gradients, then that of SyncBatchNorm's statistics, if it is enabled.
    groups: Vec<ProcessGroup>,
    site: Option<Arc<dyn DeviceSite>>,
}

impl Member {
    /// Creates a member for each of `count` replicas.
    ///
    /// Reduction is in device memory if there are `sites`, otherwise in host memory. `statistics` are the groups of
    /// SyncBatchNorm, which use the same memory; empty without it.
    ///
    /// # Errors
    /// If there are sites, but not one for each replica.
    pub fn all(
        count: usize,
        sites: &[Arc<dyn DeviceSite>],
        statistics: &[ProcessGroup],
    ) -> Result<Vec<Self>> {
        if !sites.is_empty() && sites.len() != count {
            return Err(Error::Invalid(format!("{} NCCL devices for {count} replicas", sites.len())));
        }
        let member = |(at, group)| {
            let groups = [group].into_iter().chain(statistics.get(at).cloned()).collect();
            Member { groups, site: sites.get(at).cloned() }
        };
        Ok(ProcessGroup::threads(count, Options::default())?.into_iter().enumerate().map(member).collect())
    }

    /// Creates the communicators. Every replica must call it, on the thread on which it computes.
    ///
    /// # Errors
    /// If NCCL cannot be used.
    pub fn open<M: Module>(self, module: &M) -> Result<Exchange> {
        let groups = self.groups;
        for (group, site) in groups.iter().zip(self.site.iter().cycle()) {
            if let DevicePath::Host(why) = group.attach(Ok(site.clone()))? {
                return Err(Error::Invalid(format!(
                    "the replicas cannot exchange data with NCCL: {why}. Choose another gradient reduction, such as main or tree"
                )));
            }
        }
        // One bucket, because the reduction does not overlap with backward.
        let buckets = BucketSizes { first: usize::MAX, rest: usize::MAX };
        let options = ReducerOptions { buckets, overlap: false, ..ReducerOptions::default() };
        Ok(Exchange { reducer: Reducer::new(module, &groups[0], options)?, groups })
    }
}

/// One replica's end of the exchange.
pub(super) struct Exchange {
    groups: Vec<ProcessGroup>,
    reducer: Reducer,
}

impl Exchange {
    /// Sums the gradients over the replicas, without those of parameters for which no replica has one.
    ///
    /// Every replica must call it.
    ///
    /// # Errors
    /// If the group fails.
    pub fn sums<M: Module>(&mut self, gradients: GradientsParams, module: &M) -> Result<GradientsParams> {
        self.reducer.step(1, 1).finish(gradients, module, &mut Vec::new())
    }

    /// Wakes the replicas that wait for a failed one.
    pub fn abort(&self, reason: &str) {
        self.groups.iter().for_each(|group| group.abort(reason));
    }
}
