//! The coordinator in node 0's launcher: the machines of a job, and how their rounds begin and end.

use super::{
    super::{
        environment::Round,
        failure_detector::FailureDetector,
        job::Job,
        outcome::{Decision, News, Outcome},
    },
    FromCoordinator, Join, Rules, ToCoordinator,
};
use anyhow::{Result, bail};
use collective::channel::Sender;
use std::{collections::BTreeMap, time::Instant};

/// Number of a connection, in order of arrival.
pub type Id = u64;

/// The machines of a job and their connections.
#[derive(Debug)]
pub struct Coordinator {
    rules: Rules,
    senders: BTreeMap<Id, Sender>,
    /// The machines that have joined, and whether they wait for the next round.
    nodes: BTreeMap<Id, (Join, bool)>,
    /// Members of the current round by node.
    members: Option<(Vec<Id>, FailureDetector)>,
    /// The current round or the next one, from node 0's view.
    round: Round,
    /// Time since which no round has run, and since which there have been enough machines for the next.
    since: Instant,
    enough: Option<Instant>,
}

impl Coordinator {
    /// The settings of `job`, which is node 0's, hold for all machines.
    pub fn new(job: &Job, now: Instant) -> Self {
        Self {
            rules: job.rules,
            senders: BTreeMap::new(),
            nodes: BTreeMap::new(),
            members: None,
            round: job.round.clone(),
            since: now,
            enough: None,
        }
    }

    /// Adds the connection of a launcher.
    pub fn connect(&mut self, id: Id, sender: Sender) {
        self.senders.insert(id, sender);
    }

    /// Records a message of a launcher.
    pub fn hear(&mut self, id: Id, message: ToCoordinator) {
        match message {
            ToCoordinator::Join(join) => {
                if let Err(why) = self.join(id, join) {
                    self.tell(id, &FromCoordinator::Refused(why));
                }
            }
            ToCoordinator::News(news) => self.observe(id, news, Instant::now()),
        }
    }

    /// Adds a machine to the next round.
    ///
    /// # Errors
    /// The reason why it is refused.
    fn join(&mut self, id: Id, join: Join) -> Result<(), String> {
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

    /// The members of the next round in node order, if it can begin.
    ///
    /// # Errors
    /// If there is no free port.
    fn begin(&mut self, now: Instant) -> Result<Option<Vec<Id>>> {
        if self.members.is_some() {
            return Ok(None);
        }
        let mut ready: Vec<_> = self.nodes.iter_mut().map(|(id, (join, waits))| (*id, join, waits)).collect();
        ready.sort_unstable_by_key(|(_, join, _)| join.node);
        // Node 0 is the rendezvous. A machine that has not left its last round yet will join.
        let has_rendezvous = ready.first().is_some_and(|(_, join, _)| join.node == 0);
        let complete = has_rendezvous && ready.iter().all(|(.., waits)| **waits);
        if !complete || ready.len() < self.rules.min {
            self.enough = None;
            return Ok(None);
        }
        let enough = *self.enough.get_or_insert(now);
        if ready.len() < self.rules.max && now < enough + self.rules.last_call {
            return Ok(None);
        }
        self.enough = None;
        ready.iter_mut().for_each(|(.., waits)| **waits = false);
        let members: Vec<Id> = ready.iter().map(|(id, ..)| *id).collect();
        self.round.sizes = ready.into_iter().map(|(_, join, _)| join.ranks).collect();
        self.members = Some((members.clone(), self.round.begin(None)?));
        Ok(Some(members))
    }

    /// The reason why no round will begin, if the time-out has expired.
    fn too_late(&self, now: Instant) -> Option<String> {
        if self.members.is_some() || now < self.since + self.rules.join_timeout {
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
    fn observe(&mut self, id: Id, news: News, now: Instant) {
        if let Some((_, detector)) = self.members.as_mut().filter(|(members, _)| members.contains(&id)) {
            detector.observe(news, now);
        }
    }

    /// Removes a machine whose launcher is gone. A round that it is part of ends, or continues on the others.
    pub fn gone(&mut self, id: Id, now: Instant) {
        self.senders.remove(&id);
        let Some((join, _)) = self.nodes.remove(&id) else { return };
        let Some((members, detector)) = &mut self.members else { return };
        let Some(node) = members.iter().position(|member| *member == id) else { return };
        let reason = format!("({}) is lost: its launcher ended, or cannot be reached", join.host);
        let lost = Outcome::Lost { node, reason };
        let others = members.iter().filter(|member| self.nodes.contains_key(member)).count();
        if others < self.rules.min || !detector.lose(self.round.ranks_on(node), &lost) {
            detector.observe(News::Outcome(lost), now);
        }
    }

    /// Whether no machine is connected.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Advances the round, or refuses all machines if that is not possible.
    pub fn decide(&mut self) {
        if let Err(why) = self.advance(Instant::now()) {
            let refused = FromCoordinator::Refused(format!("{why:#}"));
            self.senders.keys().for_each(|id| self.tell(*id, &refused));
        }
    }

    /// Ends or repairs the round if that is decided, or begins one if enough machines have joined.
    ///
    /// # Errors
    /// If the time-out has expired, or there is no free port.
    fn advance(&mut self, now: Instant) -> Result<()> {
        if let Some((members, detector)) = &mut self.members
            && let Some(decision) = detector.decide(now)?
        {
            let members = members.clone();
            match &decision {
                Decision::End(ending) => {
                    self.round.restart(ending);
                    (self.since, self.members) = (now, None);
                }
                Decision::Replace { generation, lost, .. } => self.round.continue_in(*generation, lost),
                Decision::Kill { .. } => {}
            }
            let decided = FromCoordinator::Decided(decision);
            members.into_iter().for_each(|id| self.tell(id, &decided));
        }
        if let Some(members) = self.begin(now)? {
            for (node, id) in members.into_iter().enumerate() {
                self.tell(id, &FromCoordinator::Begin(Round { node, ..self.round.clone() }));
            }
        } else if let Some(why) = self.too_late(now) {
            bail!("{why}");
        }
        Ok(())
    }

    fn tell(&self, id: Id, message: &FromCoordinator) {
        if let Some(sender) = self.senders.get(&id) {
            sender.send(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A job of two machines.
    fn coordinator() -> (Coordinator, Instant) {
        let (now, wait) = (Instant::now(), Duration::from_secs(9));
        let rules = Rules { min: 2, max: 2, join_timeout: wait, last_call: wait };
        (Coordinator::new(&Job { rules, ..Job::new("true", Vec::new(), 1) }, now), now)
    }

    fn join(coordinator: &mut Coordinator, id: Id, node: usize) -> Result<(), String> {
        coordinator.join(id, Join { node, ranks: 1, host: format!("host{node}") })
    }

    #[test]
    fn strange_node_ranks_are_refused() {
        let (mut coordinator, _) = coordinator();
        join(&mut coordinator, 0, 1).expect("first");
        assert!(join(&mut coordinator, 1, 1).expect_err("twice").contains("host1"));
        assert!(join(&mut coordinator, 2, 2).expect_err("too high").contains("at most 2"));
    }

    #[test]
    fn one_failure_ends_the_round_once_and_all_must_join_again() -> Result<()> {
        let (mut coordinator, now) = coordinator();
        (0..2).for_each(|id| join(&mut coordinator, id, id as usize).expect("joins"));
        let runs = |coordinator: &mut Coordinator| {
            coordinator.advance(now).map(|()| (coordinator.members.is_some(), coordinator.round.restarts))
        };
        assert_eq!(runs(&mut coordinator)?, (true, 0));
        let lost = || News::Outcome(Outcome::Lost { node: 1, reason: "x".into() });
        coordinator.observe(2, lost(), now);
        assert_eq!(runs(&mut coordinator)?, (true, 0), "2 is not a member");
        coordinator.observe(1, lost(), now);
        assert_eq!(runs(&mut coordinator)?, (false, 1));
        coordinator.observe(0, lost(), now);
        join(&mut coordinator, 0, 0).expect("again");
        assert_eq!(runs(&mut coordinator)?, (false, 1), "late, and node 1 has not left the old round");
        join(&mut coordinator, 1, 1).expect("again");
        assert_eq!(runs(&mut coordinator)?, (true, 1));
        Ok(())
    }
}
