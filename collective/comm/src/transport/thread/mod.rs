//! Transport between threads of one process, over memory of the process.

use super::local::{LocalRank, check_world, region::Region};
use crate::{Result, sync::lock};
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex},
};

/// Memory of the groups of a process that some ranks have not joined yet, by group, and the number of those that have.
#[derive(Debug, Default)]
pub struct ThreadGroups(Mutex<HashMap<u64, (Arc<Region>, usize)>>);

impl ThreadGroups {
    /// Joins a group of `size` ranks as `rank`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the rank is in use, or the world is empty or too large.
    pub fn join(&self, group: u64, rank: usize, size: usize) -> Result<LocalRank> {
        check_world(size)?;
        let mut groups = lock(&self.0);
        let (region, joined) = match groups.entry(group) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => place.insert((Arc::new(Region::map(None, size, "thread")?), 0)),
        };
        let mine = LocalRank::join(region.clone(), rank)?;
        *joined += 1;
        if *joined == size {
            groups.remove(&group);
        }
        Ok(mine)
    }
}
