//! Deadlock detection on the server: surveys all ranks twice and compares. If no thread began or ended
//! a wait in between, all answers held at the same moment.

use super::Shared;
use crate::rendezvous::{
    deadlock::{DEADLOCK_AFTER, deadlock, same_moment},
    server::ServerState,
    wire::{Activity, Event, Stall},
};
use std::{
    collections::HashMap,
    sync::MutexGuard,
    thread,
    time::{Duration, Instant},
};

/// Time to wait for the answers.
const SURVEY: Duration = Duration::from_millis(500);
/// Time between the two surveys.
const BETWEEN: Duration = Duration::from_millis(100);
/// Minimum time between surveys that are not urgent.
const SURVEY_PAUSE: Duration = Duration::from_secs(2);

impl Shared {
    /// Fails the job if its ranks are deadlocked. Does nothing unless `stall` has waited long enough.
    pub fn survey<'a>(
        &'a self,
        mut state: MutexGuard<'a, ServerState>,
        stall: &Stall,
    ) -> MutexGuard<'a, ServerState> {
        let pressing = stall.expired || stall.urgent;
        let recent = state.last_survey.is_some_and(|at| at.elapsed() < SURVEY_PAUSE);
        if !pressing && (recent || stall.seconds < DEADLOCK_AFTER.as_secs_f64()) {
            return state;
        }
        state.last_survey = Some(Instant::now());
        let (first, stuck);
        (state, first) = self.activities(state);
        if deadlock(&first, |key| state.values.contains_key(key)).is_none() {
            return state;
        }
        drop(state);
        thread::sleep(BETWEEN);
        (state, stuck) = self.activities(self.lock());
        if same_moment(&first, &stuck)
            && let Some(error) = deadlock(&stuck, |key| state.values.contains_key(key))
        {
            state.poison(error);
        }
        state
    }

    /// The activities of all present ranks; empty if one does not answer in time.
    fn activities<'a>(
        &'a self,
        state: MutexGuard<'a, ServerState>,
    ) -> (MutexGuard<'a, ServerState>, HashMap<usize, Activity>) {
        let here: Vec<usize> = (0..self.world).filter(|rank| state.present(*rank)).collect();
        let (state, inquiry) = self.ask(state, &here, SURVEY, |inquiry| Event::Survey { inquiry });
        let all = here.iter().all(|rank| inquiry.activities.contains_key(rank));
        (state, if all { inquiry.activities } else { HashMap::new() })
    }
}
