//! The machines that have joined the coordinator, and whether a round can begin.
//!
//! Pure state, without sockets or a clock.

use super::{
    super::{
        environment::Round,
        failure_detector::FailureDetector,
        outcome::{Decision, News, Outcome},
    },
    Join,
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Number of machines of a job, and time limits for them to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub min: usize,
    pub max: usize,
    /// Time limit for `min` machines to join.
    pub join_timeout: Duration,
    /// Time to wait for more machines, once there are `min`.
    pub last_call: Duration,
}

/// Number of a connection, in order of arrival.
pub type Id = u64;

/// The machines of a job.
#[derive(Debug)]
pub struct Table {
    rules: Rules,
    /// The connected machines, and whether they have joined the next round.
    nodes: BTreeMap<Id, (Join, bool)>,
    /// Members of the current round by node.
    round: Option<(Vec<Id>, FailureDetector)>,
    /// Time since which no round has run, and since which there have been enough machines for the next.
    since: Instant,
    enough: Option<Instant>,
}

impl Table {
    pub fn new(rules: Rules, now: Instant) -> Self {
        Table { rules, nodes: BTreeMap::new(), round: None, since: now, enough: None }
    }

    /// Adds a machine to the next round.
    ///
    /// # Errors
    /// The reason why it is refused.
    pub fn join(&mut self, id: Id, join: Join) -> Result<(), String> {
        let node = join.node;
        let mut others = self.nodes.iter().filter(|(other, _)| **other != id);
        if let Some((_, (other, _))) = others.find(|(_, (other, _))| other.node == node) {
            return Err(format!(
                "node rank {node} is already used by {}; give each machine a different one",
                other.host
            ));
        }
        if node >= self.rules.max {
            return Err(format!("node rank {node} is too high: there are at most {} nodes", self.rules.max));
        }
        self.nodes.insert(id, (join, true));
        Ok(())
    }

    /// The members of the next round in node order, if it can begin. Sets their numbers of ranks in `round`.
    pub fn begin(&mut self, now: Instant, round: &mut Round) -> Option<Vec<Id>> {
        if self.round.is_some() {
            return None;
        }
        let mut ready: Vec<_> = self.nodes.iter_mut().map(|(id, (join, waits))| (*id, join, waits)).collect();
        ready.sort_unstable_by_key(|(_, join, _)| join.node);
        // Node 0 is the rendezvous. A machine that has not left its last round yet will join.
        let has_rendezvous = ready.first().is_some_and(|(_, join, _)| join.node == 0);
        let complete = has_rendezvous && ready.iter().all(|(.., waits)| **waits);
        if !complete || ready.len() < self.rules.min {
            self.enough = None;
            return None;
        }
        let enough = *self.enough.get_or_insert(now);
        if ready.len() < self.rules.max && now < enough + self.rules.last_call {
            return None;
        }
        self.enough = None;
        ready.iter_mut().for_each(|(.., waits)| **waits = false);
        let members: Vec<Id> = ready.iter().map(|(id, ..)| *id).collect();
        round.sizes = ready.into_iter().map(|(_, join, _)| join.ranks).collect();
        self.round = Some((members.clone(), round.detector()));
        Some(members)
    }

    /// The reason why no round will begin, if the time-out has expired.
    pub fn too_late(&self, now: Instant) -> Option<String> {
        if self.round.is_some() || now < self.since + self.rules.join_timeout {
            return None;
        }
        let here: Vec<String> =
            self.nodes.values().map(|(n, _)| format!("{} ({})", n.node, n.host)).collect();
        Some(format!(
            "after {:.0} s, {} of at least {} nodes have connected: {}; start `burn-ddp launch` on the other nodes with the same --master-addr and --master-port and with different node ranks",
            self.rules.join_timeout.as_secs_f64(),
            here.len(),
            self.rules.min,
            here.join(", "),
        ))
    }

    /// Records news of a machine.
    pub fn observe(&mut self, id: Id, news: News, now: Instant) {
        if let Some((_, detector)) = self.round.as_mut().filter(|(members, _)| members.contains(&id)) {
            detector.observe(news, now);
        }
    }

    /// Removes a machine whose launcher is gone, which ends a round that it is part of.
    pub fn gone(&mut self, id: Id, now: Instant) {
        let Some((join, _)) = self.nodes.remove(&id) else { return };
        let number = self.round.as_ref().and_then(|(members, _)| members.iter().position(|m| *m == id));
        let reason = format!("({}) is lost: its launcher ended, or cannot be reached", join.host);
        let lost = Outcome::Lost { node: number.unwrap_or(join.node), reason };
        self.observe(id, News::Outcome(lost), now);
    }

    /// The members of the round and what they do, if that is decided. An outcome ends the round.
    pub fn decide(&mut self, now: Instant) -> Option<(Vec<Id>, Decision)> {
        let (members, detector) = self.round.as_mut()?;
        let (members, decision) = (members.clone(), detector.decide(now)?);
        if let Decision::End(_) = decision {
            self.since = now;
            self.round = None;
        }
        Some((members, decision))
    }

    /// Whether no machine is connected.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Table {
        /// The members of a round that ends, and its outcome.
        fn end(&mut self, now: Instant) -> Option<(Vec<Id>, Outcome)> {
            match self.decide(now)? {
                (members, Decision::End(ending)) => Some((members, ending)),
                (_, repair) => panic!("{repair:?}"),
            }
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn table(min: usize, max: usize) -> (Table, Round, Instant) {
        let (now, round) = (Instant::now(), Round::default());
        (Table::new(Rules { min, max, join_timeout: 9 * SECOND, last_call: 3 * SECOND }, now), round, now)
    }

    fn join(table: &mut Table, id: Id, node: usize, ranks: usize) -> Result<(), String> {
        table.join(id, Join { node, ranks, host: format!("host{node}") })
    }

    #[test]
    fn strange_node_ranks_are_refused() {
        let (mut table, ..) = table(2, 2);
        join(&mut table, 0, 1, 1).expect("first");
        assert!(join(&mut table, 1, 1, 1).expect_err("twice").contains("host1"));
        assert!(join(&mut table, 2, 2, 1).expect_err("too high").contains("at most 2"));
    }

    #[test]
    fn one_failure_ends_the_round_once_and_all_must_join_again() {
        let (mut table, mut round, now) = table(2, 2);
        (0..2).for_each(|id| join(&mut table, id, id as usize, 1).expect("joins"));
        table.begin(now, &mut round).expect("a round");
        let lost = Outcome::Lost { node: 1, reason: "x".into() };
        table.observe(2, News::Outcome(lost.clone()), now);
        assert_eq!(table.end(now), None, "2 is not a member");
        table.observe(1, News::Outcome(lost.clone()), now);
        assert_eq!(table.end(now), Some((vec![0, 1], lost.clone())));
        table.observe(0, News::Outcome(lost), now);
        assert_eq!(table.end(now), None, "late");
        join(&mut table, 0, 0, 1).expect("again");
        assert_eq!(table.begin(now, &mut round), None, "node 1 has not left the old round");
        join(&mut table, 1, 1, 1).expect("again");
        assert!(table.begin(now, &mut round).is_some());
    }
}
