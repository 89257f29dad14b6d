//! The machines that have joined the coordinator, and whether a round can begin.
//!
//! Pure state, without sockets or a clock.

use super::{
    super::{
        failure_detector::{Decision, FailureDetector},
        generation::FromRank,
        outcome::Outcome,
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

#[derive(Debug, Default)]
struct Node {
    host: String,
    number: usize,
    /// Number of ranks, if the machine has joined the next round.
    waiting: Option<usize>,
}

/// The machines of a job.
#[derive(Debug)]
pub struct Table {
    rules: Rules,
    nodes: BTreeMap<Id, Node>,
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
    pub fn join(&mut self, id: Id, join: &Join) -> Result<(), String> {
        let Join { node, ranks, host } = join;
        if let Some((_, other)) = self.nodes.iter().find(|(other, n)| **other != id && n.number == *node) {
            return Err(format!(
                "node rank {node} is already used by {}; give each machine a different one",
                other.host
            ));
        }
        if *node >= self.rules.max {
            return Err(format!("node rank {node} is too high: there are at most {} nodes", self.rules.max));
        }
        let known = Node { host: host.clone(), number: *node, waiting: Some(*ranks) };
        self.nodes.insert(id, known);
        Ok(())
    }

    /// The members of the next round in node order, with their numbers of ranks, if it can begin.
    ///
    /// `detector` makes the failure detector of that number of ranks.
    pub fn begin(
        &mut self,
        now: Instant,
        detector: impl FnOnce(usize) -> FailureDetector,
    ) -> Option<Vec<(Id, usize)>> {
        if self.round.is_some() {
            return None;
        }
        let mut ready: Vec<(usize, Id, usize)> =
            self.nodes.iter().filter_map(|(id, n)| Some((n.number, *id, n.waiting?))).collect();
        // Node 0 is the rendezvous. A machine that has not left its last round yet will join.
        let complete = ready.iter().any(|(number, ..)| *number == 0) && ready.len() == self.nodes.len();
        if !complete || ready.len() < self.rules.min {
            self.enough = None;
            return None;
        }
        let enough = *self.enough.get_or_insert(now);
        if ready.len() < self.rules.max && now < enough + self.rules.last_call {
            return None;
        }
        ready.sort_unstable();
        self.enough = None;
        for node in self.nodes.values_mut() {
            node.waiting = None;
        }
        let ranks = ready.iter().map(|(.., ranks)| ranks).sum();
        self.round = Some((ready.iter().map(|(_, id, _)| *id).collect(), detector(ranks)));
        Some(ready.into_iter().map(|(_, id, ranks)| (id, ranks)).collect())
    }

    /// The reason why no round will begin, if the time-out has expired.
    pub fn too_late(&self, now: Instant) -> Option<String> {
        if self.round.is_some() || now < self.since + self.rules.join_timeout {
            return None;
        }
        let here: Vec<String> = self.nodes.values().map(|n| format!("{} ({})", n.number, n.host)).collect();
        Some(format!(
            "after {:.0} s, {} of at least {} nodes have connected: {}; start `burn-ddp launch` on the other nodes with the same --master-addr and --master-port and with different node ranks",
            self.rules.join_timeout.as_secs_f64(),
            here.len(),
            self.rules.min,
            here.join(", "),
        ))
    }

    /// Records the outcome of a rank of a machine, or of the machine.
    pub fn observe(&mut self, id: Id, outcome: Outcome, now: Instant) {
        if let Some((_, detector)) = self.round.as_mut().filter(|(members, _)| members.contains(&id)) {
            detector.observe(outcome, now);
        }
    }

    /// Records a message of a rank about its group.
    pub fn hear(&mut self, rank: usize, message: FromRank, now: Instant) {
        if let Some((_, detector)) = &mut self.round {
            detector.hear(rank, message, now);
        }
    }

    /// Removes a machine whose launcher is gone, which ends a round that it is part of.
    pub fn gone(&mut self, id: Id, now: Instant) {
        let Some(node) = self.nodes.remove(&id) else { return };
        let number = self.round.as_ref().and_then(|(members, _)| members.iter().position(|m| *m == id));
        let reason = format!("({}) is lost: its launcher ended, or cannot be reached", node.host);
        self.observe(id, Outcome::Lost { node: number.unwrap_or(node.number), reason }, now);
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
                (_, Decision::Repair(repair)) => panic!("{repair:?}"),
            }
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn table(min: usize, max: usize) -> (Table, Instant) {
        let now = Instant::now();
        (Table::new(Rules { min, max, join_timeout: 9 * SECOND, last_call: 3 * SECOND }, now), now)
    }

    fn join(table: &mut Table, id: Id, node: usize, ranks: usize) -> Result<(), String> {
        table.join(id, &Join { node, ranks, host: format!("host{node}") })
    }

    #[test]
    fn a_round_begins_in_node_order_when_all_have_come() {
        let (mut table, now) = table(2, 2);
        join(&mut table, 0, 1, 4).expect("first");
        assert_eq!(table.begin(now, FailureDetector::new), None);
        join(&mut table, 1, 0, 2).expect("second");
        assert_eq!(table.begin(now, FailureDetector::new), Some(vec![(1, 2), (0, 4)]));
        assert_eq!(table.begin(now, FailureDetector::new), None, "it runs");
    }

    #[test]
    fn strange_node_ranks_are_refused() {
        let (mut table, _) = table(2, 2);
        join(&mut table, 0, 1, 1).expect("first");
        assert!(join(&mut table, 1, 1, 1).expect_err("twice").contains("host1"));
        assert!(join(&mut table, 2, 2, 1).expect_err("too high").contains("at most 2"));
    }

    #[test]
    fn one_failure_ends_the_round_once_and_all_must_join_again() {
        let (mut table, now) = table(2, 2);
        (0..2).for_each(|id| join(&mut table, id, id as usize, 1).expect("joins"));
        table.begin(now, FailureDetector::new).expect("a round");
        let lost = Outcome::Lost { node: 1, reason: "x".into() };
        table.observe(1, lost.clone(), now);
        assert_eq!(table.end(now), Some((vec![0, 1], lost.clone())));
        table.observe(0, lost, now);
        assert_eq!(table.end(now), None, "late");
        join(&mut table, 0, 0, 1).expect("again");
        assert_eq!(table.begin(now, FailureDetector::new), None, "node 1 has not left the old round");
        join(&mut table, 1, 1, 1).expect("again");
        assert!(table.begin(now, FailureDetector::new).is_some());
    }

    #[test]
    fn all_must_be_done() {
        let (mut table, now) = table(2, 2);
        (0..2).for_each(|id| join(&mut table, id, id as usize, 1).expect("joins"));
        table.begin(now, FailureDetector::new).expect("a round");
        table.observe(0, Outcome::Done, now);
        table.observe(2, Outcome::Done, now);
        assert_eq!(table.end(now), None, "2 is not a member");
        table.observe(1, Outcome::Done, now);
        assert_eq!(table.end(now), Some((vec![0, 1], Outcome::Done)));
    }

    #[test]
    fn fewer_machines_go_on_after_a_last_call() {
        let (mut table, now) = table(1, 3);
        (0..3).for_each(|id| join(&mut table, id, id as usize, 1).expect("joins"));
        assert_eq!(
            table.begin(now, FailureDetector::new).map(|members| members.len()),
            Some(3),
            "at most: no call"
        );
        table.gone(1, now);
        let (_, ending) = table.end(now).expect("decides");
        assert!(matches!(ending, Outcome::Lost { node: 1, .. }), "{ending:?}");
        join(&mut table, 0, 0, 1).expect("again");
        join(&mut table, 2, 2, 1).expect("again");
        assert_eq!(table.begin(now, FailureDetector::new), None, "last call");
        assert_eq!(table.begin(now + 3 * SECOND, FailureDetector::new), Some(vec![(0, 1), (2, 1)]));
    }

    #[test]
    fn too_few_are_named() {
        let (mut table, now) = table(2, 2);
        join(&mut table, 0, 0, 1).expect("joins");
        assert_eq!(table.too_late(now), None);
        let why = table.too_late(now + 10 * SECOND).expect("too late");
        assert!(why.contains("1 of at least 2 nodes have connected: 0 (host0)"), "{why}");
    }
}
