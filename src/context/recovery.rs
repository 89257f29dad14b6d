//! Live recovery in a rank: the program runs again in this process, in the next generation of the group.

use crate::{
    launch::{Generation, LauncherLink},
    process::lock,
};
use anyhow::{Error, Result};
use collective::{Error as Failed, InitMethod, Options, strategy::LiveState};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Time limit for the launcher to begin the next generation.
const NEXT: Duration = Duration::from_secs(120);

/// A training of this process that its failed group has interrupted.
#[derive(Clone)]
pub struct Survivor {
    pub state: LiveState,
    /// Folder of the run.
    pub run: PathBuf,
    /// When its group failed.
    pub failed: Instant,
}

/// What outlives a generation of the group in this process.
pub struct Recovery {
    link: Arc<LauncherLink>,
    current: Mutex<Generation>,
    /// Interrupted trainings, by their number in the program.
    survivors: Mutex<BTreeMap<usize, Survivor>>,
    /// Why the program cannot continue in another generation.
    refusal: Mutex<Option<String>>,
}

impl Recovery {
    /// Connects to the launcher; `None` if it does not replace ranks.
    ///
    /// # Errors
    /// If a variable of the launcher is not valid.
    pub fn open() -> Result<Option<Arc<Self>>> {
        let Some(link) = LauncherLink::open()?.map(Arc::new) else { return Ok(None) };
        let current = Mutex::new(link.newest());
        Ok(Some(Arc::new(Self { link, current, survivors: Mutex::default(), refusal: Mutex::default() })))
    }

    /// The generation of this process's group.
    pub fn generation(&self) -> Generation {
        *lock(&self.current)
    }

    /// Selects the newest generation. Returns where its ranks meet, and `options` with what they share.
    ///
    /// # Errors
    /// If the launcher's secret is missing.
    pub fn join(&self, options: Options) -> Result<(InitMethod, Options)> {
        let generation = self.link.newest();
        *lock(&self.current) = generation;
        let link = self.link.clone();
        let options = options.cancel_if(move || link.newest().number > generation.number);
        let options = if generation.number > 0 { options.secret(generation.secret()?) } else { options };
        Ok((generation.init_method(), options))
    }

    /// Keeps an interrupted training for the next generation.
    pub fn keep(&self, training: usize, survivor: Survivor) {
        lock(&self.survivors).insert(training, survivor);
    }

    /// A training that was interrupted in an earlier generation.
    pub fn survivor(&self, training: usize) -> Option<Survivor> {
        lock(&self.survivors).get(&training).cloned()
    }

    /// Ends with the group from now on, so that all ranks restart.
    pub fn refuse(&self, reason: impl Into<String>) {
        lock(&self.refusal).get_or_insert(reason.into());
        self.link.refuse();
    }

    /// Waits for the next generation after `error`. Returns the error if there is none.
    ///
    /// # Errors
    /// The error, if it is not a failure of the group, or the program or the launcher does not continue.
    pub fn next_after(&self, error: Error) -> Result<()> {
        if let Some(reason) = lock(&self.refusal).as_ref().filter(|_| is_group_failure(&error)) {
            return Err(error.context(format!("all ranks must restart, because {reason}")));
        }
        let continues = is_group_failure(&error) && self.link.wait_after(self.generation(), NEXT);
        if continues { Ok(()) } else { Err(error) }
    }
}

/// Whether another rank, or the connection to it, has failed.
fn is_group_failure(error: &Error) -> bool {
    let failed = |cause: &Failed| {
        matches!(
            cause.cause(),
            Failed::PeerLost { .. }
                | Failed::Timeout { .. }
                | Failed::Rendezvous { .. }
                | Failed::Unauthenticated { .. }
                | Failed::Aborted
        )
    };
    error.chain().filter_map(|cause| cause.downcast_ref()).any(failed)
}
