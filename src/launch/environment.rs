//! Environment variables of a rank: torchrun's, the job's secret, and its number of threads.

use super::{
    failure_detector::FailureDetector,
    generation::{Generation, Place},
    nproc::cores,
    outcome::{ExitReason, Failure, Outcome},
};
use crate::process::{
    auto_batch::{self, MAX_HALVINGS},
    exit::{BATCH_TOO_LARGE, LAUNCHED},
};
use anyhow::Result;
use collective::{SECRET, Secret};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, ops::Range, process::Command};

/// Environment variable with the reason for the number of ranks, which rank 0 prints.
pub const WHY: &str = "BURN_DDP_WHY";

/// Number of threads of a rank, for OpenMP (PyTorch, NumPy) and rayon (Burn).
const THREADS: [&str; 2] = ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"];

/// What happens to the other ranks after one has failed, if restarts are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub enum Recover {
    /// All ranks restart.
    #[default]
    Restart,
    /// The failed rank is replaced, and the others keep their processes.
    Live,
}

/// One start of all ranks, from this machine's view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Number of restarts of all ranks so far.
    pub restarts: usize,
    pub max_restarts: usize,
    /// Number of restarts with half the batch, which are not limited by `max_restarts`.
    pub halvings: u32,
    pub recover: Recover,
    /// Index of this machine.
    pub node: usize,
    /// Number of ranks on each machine at the start, by node.
    pub sizes: Vec<usize>,
    /// Machines that were lost since, without which the round continues.
    pub lost: BTreeSet<usize>,
    /// Number of times that ranks were replaced, and where rank 0 listens.
    pub generation: Generation,
    /// Id of the job, equal in all rounds and on all machines.
    pub run_id: String,
}

impl Round {
    /// Begins the round: rank 0 will listen at `master_port`, or at a free port.
    ///
    /// Returns the detector of its failures, which are repaired with [`Recover::Live`] while restarts are left.
    ///
    /// # Errors
    /// If the system has no free port.
    pub fn begin(&mut self, master_port: Option<u16>) -> Result<FailureDetector> {
        let replacements = match self.recover {
            Recover::Restart => 0,
            Recover::Live => self.max_restarts.saturating_sub(self.failures()),
        };
        let mut detector = FailureDetector::new(self.world_size(), replacements);
        let master_port = master_port.map_or_else(|| detector.reserve_port(), Ok)?;
        self.generation = Generation { number: 0, master_port };
        Ok(detector)
    }

    /// Number of restarts and replacements after failures, which `max_restarts` limits.
    pub fn failures(&self) -> usize {
        self.restarts + self.generation.number - self.halvings as usize
    }

    /// Whether another round with half the batch follows this one.
    pub fn halves_batch(&self, ending: &Outcome) -> bool {
        let too_large = ExitReason::Exited(BATCH_TOO_LARGE.into());
        self.halvings < MAX_HALVINGS
            && matches!(ending, Outcome::Failed(Failure { how, .. }) if *how == too_large)
    }

    /// Counts the restart after this round.
    pub fn restart(&mut self, ending: &Outcome) {
        self.halvings += u32::from(self.halves_batch(ending));
        self.restarts += 1 + self.generation.number;
        self.generation.number = 0;
        self.lost.clear();
    }

    /// Begins a generation, without the machines that are lost.
    pub fn continue_in(&mut self, generation: Generation, lost: &[Outcome]) {
        self.generation = generation;
        self.lost.extend(lost.iter().filter_map(|outcome| match outcome {
            Outcome::Lost { node, .. } => Some(*node),
            Outcome::Done | Outcome::Failed(_) | Outcome::Stopped { .. } => None,
        }));
    }

    /// Ranks on this machine.
    pub fn local_world_size(&self) -> usize {
        self.ranks_on(self.node).len()
    }

    /// Ranks on all machines.
    pub fn world_size(&self) -> usize {
        let lost: usize = self.lost.iter().map(|node| self.ranks_on(*node).len()).sum();
        self.sizes.iter().sum::<usize>() - lost
    }

    /// The ranks of a machine at the start of the round.
    pub fn ranks_on(&self, node: usize) -> Range<usize> {
        let first = self.sizes.iter().take(node).sum();
        first..first + self.sizes.get(node).copied().unwrap_or(0)
    }

    /// The place in the current generation of the process that was `rank` at the start of the round.
    pub fn place(&self, rank: usize) -> Place {
        let lost = self.lost.iter().map(|node| self.ranks_on(*node)).filter(|ranks| ranks.end <= rank);
        let rank = rank - lost.map(|ranks| ranks.len()).sum::<usize>();
        Place { generation: self.generation, rank, world_size: self.world_size() }
    }

    /// Sets the environment of `command` for the process of this machine that was `rank` at the start of the round.
    ///
    /// `secret` is the job's.
    pub fn describe(&self, command: &mut Command, rank: usize, master_addr: &str, secret: &Secret) {
        let local_rank = rank - self.ranks_on(self.node).start;
        let Place { rank, world_size: world, .. } = self.place(rank);
        let (local, nodes) = (self.local_world_size(), self.sizes.len() - self.lost.len());
        let node = self.node - self.lost.range(..self.node).count();
        for (name, value) in [
            ("RANK", rank),
            ("LOCAL_RANK", local_rank),
            ("WORLD_SIZE", world),
            ("LOCAL_WORLD_SIZE", local),
            ("GROUP_RANK", node),
            ("GROUP_WORLD_SIZE", nodes),
            ("NODE_RANK", node),
            // torchrun's roles: there is only one.
            ("ROLE_RANK", rank),
            ("ROLE_WORLD_SIZE", world),
            ("MASTER_PORT", usize::from(self.generation.master_port)),
            ("TORCHELASTIC_RESTART_COUNT", self.restarts + self.generation.number),
            ("TORCHELASTIC_MAX_RESTARTS", self.max_restarts),
        ] {
            command.env(name, value.to_string());
        }
        command
            .env("ROLE_NAME", "default")
            .env("MASTER_ADDR", master_addr)
            .env("TORCHELASTIC_RUN_ID", &self.run_id)
            // Rank 0 hosts the store itself; the launcher does not listen on MASTER_PORT.
            .env("TORCHELASTIC_USE_AGENT_STORE", "False")
            // Ranks of an earlier round are refused.
            .env(SECRET, secret.derive(&format!("round {}", self.restarts)).expose())
            .env(LAUNCHED, "1");
        if self.halvings > 0 {
            command.env(auto_batch::DIVISOR, (1_u32 << self.halvings).to_string());
        }
        let threads = (cores() / local.max(1)).max(1).to_string();
        for name in THREADS.iter().filter(|name| std::env::var_os(name).is_none()) {
            command.env(name, &threads);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_after_a_lost_machine_move_up() {
        let sizes = vec![2, 1, 3];
        let mut round = Round { node: 2, sizes, lost: BTreeSet::from([1]), ..Round::default() };
        let places: Vec<usize> = [0, 1, 3, 4, 5].map(|rank| round.place(rank).rank).into();
        assert_eq!((places, round.world_size()), (vec![0, 1, 2, 3, 4], 5));
        let mut command = Command::new("true");
        round.describe(&mut command, 4, "127.0.0.1", &Secret::random());
        let value = |name: &str| {
            let found = command.get_envs().find(|(known, _)| *known == name);
            found.and_then(|(_, value)| value?.to_str()).map(str::to_owned)
        };
        for (name, expected) in [("RANK", "3"), ("WORLD_SIZE", "5"), ("NODE_RANK", "1"), ("LOCAL_RANK", "1")]
        {
            assert_eq!(value(name).as_deref(), Some(expected), "{name}");
        }
        round.restart(&Outcome::Done);
        assert_eq!(round.world_size(), 6);
    }

    #[test]
    fn restarts_with_half_the_batch_are_counted_apart() {
        let exited = |code| Outcome::failure(1, ExitReason::Exited(code));
        let counts = |round: &Round| (round.restarts, round.failures(), round.halvings);
        let mut round = Round { max_restarts: 1, ..Round::default() };
        round.restart(&exited(BATCH_TOO_LARGE.into()));
        assert_eq!(counts(&round), (1, 0, 1));
        round.generation.number = 2;
        assert_eq!(counts(&round), (1, 2, 1));
        round.restart(&exited(1));
        assert_eq!(counts(&round), (4, 3, 1));
        for _ in 0..20 {
            round.restart(&exited(BATCH_TOO_LARGE.into()));
        }
        assert_eq!(counts(&round), (24, 8, MAX_HALVINGS));
    }
}
