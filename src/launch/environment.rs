//! What a rank is told: torchrun's variables, the job's secret, and its share of the cores.

use super::port::MasterPort;
use crate::{device::cores, exit::LAUNCHED};
use collective::{MASTER_FD, SECRET, Secret};
use std::process::Command;

/// Tells rank 0 why its launcher started what it started.
pub const WHY: &str = "BURN_DDP_WHY";

/// Says how many threads a rank computes with: to OpenMP (PyTorch, NumPy) and to rayon (Burn).
const THREADS: [&str; 2] = ["OMP_NUM_THREADS", "RAYON_NUM_THREADS"];

/// One start of all ranks, as this machine sees it.
#[derive(Clone, Debug)]
pub struct Round {
    /// How often the job has been started again.
    pub restarts: usize,
    pub max_restarts: usize,
    /// This machine among all.
    pub node: usize,
    /// Ranks on each machine, by node.
    pub sizes: Vec<usize>,
    pub master_addr: String,
    pub master_port: u16,
    /// Of this round alone: whoever comes late from an earlier one is refused.
    pub secret: Secret,
    /// The job's name, the same in all rounds and on all machines.
    pub run_id: String,
}

impl Round {
    /// The first round of a job on this machine alone.
    pub fn alone(count: usize, master_port: u16, secret: Secret) -> Self {
        Round {
            restarts: 0,
            max_restarts: 0,
            node: 0,
            sizes: vec![count],
            master_addr: "127.0.0.1".into(),
            master_port,
            secret,
            run_id: format!("{}-{master_port}", std::process::id()),
        }
    }

    /// Ranks on this machine.
    pub fn local_world_size(&self) -> usize {
        self.sizes.get(self.node).copied().unwrap_or(0)
    }

    /// Ranks on all machines.
    pub fn world_size(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// The rank of this machine's first process.
    pub fn first_rank(&self) -> usize {
        self.sizes.iter().take(self.node).sum()
    }

    /// Tells `command` that it is the machine's process `local_rank`.
    pub fn describe(&self, command: &mut Command, local_rank: usize, port: &MasterPort) {
        let rank = self.first_rank() + local_rank;
        let (local, world) = (self.local_world_size(), self.world_size());
        for (name, value) in [
            ("RANK", rank),
            ("LOCAL_RANK", local_rank),
            ("WORLD_SIZE", world),
            ("LOCAL_WORLD_SIZE", local),
            ("GROUP_RANK", self.node),
            ("GROUP_WORLD_SIZE", self.sizes.len()),
            ("NODE_RANK", self.node),
            // torchrun's roles: here there is one.
            ("ROLE_RANK", rank),
            ("ROLE_WORLD_SIZE", world),
            ("MASTER_PORT", usize::from(self.master_port)),
            ("TORCHELASTIC_RESTART_COUNT", self.restarts),
            ("TORCHELASTIC_MAX_RESTARTS", self.max_restarts),
        ] {
            command.env(name, value.to_string());
        }
        command
            .env("ROLE_NAME", "default")
            .env("MASTER_ADDR", &self.master_addr)
            .env("TORCHELASTIC_RUN_ID", &self.run_id)
            // Rank 0 hosts the store itself; nothing of ours listens at MASTER_PORT.
            .env("TORCHELASTIC_USE_AGENT_STORE", "False")
            .env(SECRET, self.secret.expose())
            .env(LAUNCHED, "1");
        match port.inherited().filter(|_| rank == 0) {
            Some(fd) => command.env(MASTER_FD, fd.to_string()),
            None => command.env_remove(MASTER_FD),
        };
        let threads = (cores() / local.max(1)).max(1).to_string();
        for name in THREADS.iter().filter(|name| std::env::var_os(name).is_none()) {
            command.env(name, &threads);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn ranks_count_over_machines_of_different_size() {
        let mut round = Round::alone(2, 7, Secret::new("x").expect("not empty"));
        (round.node, round.sizes, round.restarts) = (1, vec![4, 2, 1], 1);
        let mut command = Command::new("true");
        round.describe(&mut command, 1, &MasterPort::Given(7));
        let vars: HashMap<_, _> = command
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_str()?.to_owned(), value?.to_str()?.to_owned())))
            .collect();
        for (name, value) in [
            ("RANK", "5"),
            ("LOCAL_RANK", "1"),
            ("WORLD_SIZE", "7"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("GROUP_RANK", "1"),
            ("GROUP_WORLD_SIZE", "3"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "7"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
            ("TORCHELASTIC_MAX_RESTARTS", "0"),
        ] {
            assert_eq!(vars.get(name).map(String::as_str), Some(value), "{name}");
        }
    }
}
