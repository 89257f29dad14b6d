//! Transport between threads of one process, over memory of the process.

use super::local::{
    LocalRank, check_world,
    region::{Memory, Region, bytes},
};
use crate::{Error, Result};
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    collections::{HashMap, hash_map::Entry},
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
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
        let region = Arc::new(Region::new(Heap::new(bytes(world))?, world));
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
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
pub type ThreadCommunicator = LocalRank<Heap>;

/// Memory of this process.
#[derive(Debug)]
pub struct Heap {
    start: NonNull<u8>,
    len: usize,
}

/// Alignment that [`Memory`] requires.
const PAGE: usize = 4096;

impl Heap {
    /// Allocates `len` zeroed bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is not enough memory.
    pub fn new(len: usize) -> Result<Self> {
        // SAFETY: not of size zero.
        match NonNull::new(unsafe { alloc_zeroed(Self::layout(len)?) }) {
            Some(start) => Ok(Heap { start, len }),
            None => Err(Error::Invalid(format!("out of memory: {len} bytes for a group of threads"))),
        }
    }

    /// Includes space for alignment: an aligned allocation would not be zeroed lazily.
    fn layout(len: usize) -> Result<Layout> {
        Layout::from_size_align(len + PAGE, 16).map_err(|e| Error::Invalid(format!("{len} bytes: {e}")))
    }
}

// SAFETY: aligned within the allocation, which lives as long as this.
unsafe impl Memory for Heap {
    const NAME: &'static str = "thread";

    fn base(&self) -> *mut u8 {
        let start = self.start.as_ptr();
        start.wrapping_add(start.align_offset(PAGE))
    }

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: an address; who may read and write there is `LocalRank`'s business.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        if let Ok(layout) = Self::layout(self.len) {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}
