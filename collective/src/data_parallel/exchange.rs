//! One all-reduce between the replicas of a process, each in its own thread: every one has the sums of
//! all gradients then, of which the main device's are used. Between NVIDIA GPUs it is NCCL's, with a
//! communicator for each device.

use crate::{
    DevicePath, Error, Options, ProcessGroup, Result,
    gradient::{BucketSizes, buckets::Plan, on_device},
    transport::nccl::DeviceSite,
};
use burn::{module::Module, optim::GradientsParams};
use std::sync::Arc;

/// One replica's end of it.
pub(super) struct Exchange {
    group: ProcessGroup,
    site: Option<Arc<dyn DeviceSite>>,
    plan: Arc<Plan>,
}

impl Exchange {
    /// An end for each of `count` replicas of `module`; in device memory with their `sites`, if there are
    /// any, else through the host's.
    ///
    /// # Errors
    /// If there are sites, but not one for each replica.
    pub fn all<M: Module>(module: &M, count: usize, sites: &[Arc<dyn DeviceSite>]) -> Result<Vec<Self>> {
        if !sites.is_empty() && sites.len() != count {
            return Err(Error::Invalid(format!("{} NCCL devices for {count} replicas", sites.len())));
        }
        // All of it in one piece: nothing overlaps with backward here.
        let plan = Arc::new(Plan::new(module, BucketSizes { first: usize::MAX, rest: usize::MAX }));
        let end = |(at, group)| Exchange { group, site: sites.get(at).cloned(), plan: plan.clone() };
        Ok(ProcessGroup::threads(count, Options::default())?.into_iter().enumerate().map(end).collect())
    }

    /// Makes the communicators. Every replica must call it, on the thread on which it will compute.
    ///
    /// # Errors
    /// If NCCL cannot be used.
    pub fn open(&self) -> Result<()> {
        let Some(site) = &self.site else { return Ok(()) };
        match self.group.attach(Ok(site.clone()))? {
            DevicePath::Nccl(_) => Ok(()),
            DevicePath::Host(why) => Err(Error::Invalid(format!(
                "the replicas cannot exchange gradients with NCCL: {why}. Choose another way for them to come together, such as one device after the other"
            ))),
        }
    }

    /// The sums of all replicas' gradients, without those of parameters that none has one for. Every
    /// replica must call it.
    ///
    /// # Errors
    /// If the group fails.
    pub fn sums<M: Module>(&self, gradients: GradientsParams, module: &M) -> Result<GradientsParams> {
        let mut totals = Vec::new();
        Ok(on_device::reduce(&self.plan, &self.group, gradients, module, &mut totals)?.0)
    }

    /// Wakes replicas that wait for one that failed.
    pub fn abort(&self, reason: &str) {
        self.group.abort(reason);
    }
}
