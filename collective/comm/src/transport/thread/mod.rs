//! Transport between threads of one process, over memory of the process.

use super::local::{LocalRank, check_world, region::Region};
use crate::{Error, Result, sync::lock};
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex},
};

/// Creates the ranks of one process.
#[derive(Debug)]
pub struct ThreadGroup;

impl ThreadGroup {
    /// One communicator for each of `world` ranks, in rank order.
    ///
    /// # Errors
    /// If the world is empty or too large.
    pub fn create(world: usize) -> Result<Vec<ThreadCommunicator>> {
        check_world(world)?;
        let region = Arc::new(Region::map(None, world, "thread")?);
        (0..world).map(|rank| LocalRank::join(region.clone(), rank)).collect()
    }
}

/// Communicators of groups that not all ranks of a process have opened yet, by group.
#[derive(Debug, Default)]
pub(crate) struct ThreadGroups(Mutex<HashMap<u64, Vec<Option<ThreadCommunicator>>>>);

impl ThreadGroups {
    /// The communicator of one rank in a group. The first rank creates those of all ranks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the rank is in use, or the world is empty or too large.
    pub fn communicator(&self, group: u64, rank: usize, size: usize) -> Result<ThreadCommunicator> {
        let mut groups = lock(&self.0);
        let communicators = match groups.entry(group) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => place.insert(ThreadGroup::create(size)?.into_iter().map(Some).collect()),
        };
        let mine = communicators.get_mut(rank).and_then(Option::take).ok_or_else(|| {
            Error::Invalid(format!("rank {rank} of {size} is already in use in this group"))
        })?;
        if communicators.iter().all(Option::is_none) {
            groups.remove(&group);
        }
        Ok(mine)
    }
}

/// One rank of a [`ThreadGroup`].
pub type ThreadCommunicator = LocalRank;
