//! Live recovery in a rank: the program runs again in this process, in the next generation of the group.

use crate::{
    launch::{Environment, FromRank, Generation, LineSocket, Place},
    process::lock,
};
use anyhow::{Context, Error, Result, bail};
use collective::{Error as Failed, InitMethod, Options, SECRET, Secret, address, strategy::LiveState};
use std::{
    collections::BTreeMap,
    env,
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// Time limit for the launcher to begin the next generation.
const NEXT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(2);

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
pub struct Recovery(Mutex<State>);

struct State {
    /// Connection to the launcher.
    socket: LineSocket,
    newest: Place,
    /// This process's place in its group.
    current: Place,
    /// Interrupted trainings, by their number in the program.
    survivors: BTreeMap<usize, Survivor>,
    /// Why the program cannot continue in another generation.
    refusal: Option<String>,
}

impl State {
    fn newest(&mut self) -> Place {
        while let Some(place) = self.socket.receive() {
            self.newest = place;
        }
        self.newest
    }
}

impl Recovery {
    /// Connects to the launcher; `None` if it does not replace ranks.
    ///
    /// # Errors
    /// If the variable or the first message of the launcher is not valid.
    pub fn open() -> Result<Option<Arc<Self>>> {
        let Some(socket) = LineSocket::inherited()? else { return Ok(None) };
        let (first, survivors) = (Place::default(), BTreeMap::new());
        let mut state = State { socket, newest: first, current: first, survivors, refusal: None };
        state.current = state.newest();
        if state.current.world_size == 0 {
            bail!(
                "--recover live: the launcher's message is not understood; use the launcher of this version"
            );
        }
        Ok(Some(Arc::new(Self(Mutex::new(state)))))
    }

    /// The generation of this process's group.
    pub fn generation(&self) -> Generation {
        lock(&self.0).current.generation
    }

    /// Selects the newest generation. Returns this rank's `environment` in it.
    pub fn select(&self, environment: Environment) -> Environment {
        let mut state = lock(&self.0);
        let Place { rank, world_size, .. } = state.newest();
        state.current = state.newest;
        Environment { rank, world_size, ..environment }
    }

    /// Returns where the ranks of the selected generation meet, and `options` with what they share.
    ///
    /// # Errors
    /// If the launcher's secret is missing or empty.
    pub fn join(self: &Arc<Self>, options: Options) -> Result<(InitMethod, Options)> {
        let (generation, recovery) = (self.generation(), self.clone());
        let is_over = move || lock(&recovery.0).newest().generation.number > generation.number;
        let mut options = options.cancel_if(is_over);
        if generation.number > 0 {
            // Ranks of other generations do not have this secret.
            let secret = Secret::new(env::var(SECRET).context(SECRET)?)?;
            options = options.secret(secret.derive(&format!("generation {}", generation.number)));
        }
        let host = env::var("MASTER_ADDR").unwrap_or_else(|_| "127.0.0.1".into());
        Ok((InitMethod::Tcp(address::join(&host, generation.master_port)), options))
    }

    /// Keeps an interrupted training for the next generation.
    pub fn keep(&self, training: usize, survivor: Survivor) {
        lock(&self.0).survivors.insert(training, survivor);
    }

    /// A training that was interrupted in an earlier generation.
    pub fn survivor(&self, training: usize) -> Option<Survivor> {
        lock(&self.0).survivors.get(&training).cloned()
    }

    /// Ends with the group from now on, so that all ranks restart.
    pub fn refuse(&self, reason: impl Into<String>) {
        let mut state = lock(&self.0);
        state.refusal.get_or_insert(reason.into());
        state.socket.send(&FromRank::MustRestart);
    }

    /// Waits for the next generation after `error`. Returns the error if there is none.
    ///
    /// # Errors
    /// The error, if it is not a failure of the group, or the program or the launcher does not continue.
    pub fn next_after(&self, error: Error) -> Result<()> {
        if !is_group_failure(&error) {
            return Err(error);
        }
        let failed = self.generation().number;
        {
            let mut state = lock(&self.0);
            if let Some(reason) = &state.refusal {
                return Err(error.context(format!("all ranks must restart, because {reason}")));
            }
            state.socket.send(&FromRank::Lost(failed));
        }
        let deadline = Instant::now() + NEXT;
        while lock(&self.0).newest().generation.number <= failed {
            if Instant::now() > deadline {
                return Err(error);
            }
            thread::sleep(PAUSE);
        }
        Ok(())
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
