//! Sub-groups.

use super::ProcessGroup;
use crate::Result;
use sha2::{Digest, Sha256};

impl ProcessGroup {
    /// Splits the group: ranks that pass the same `color` form a new group.
    ///
    /// In the new group they are ordered by `key`, then by their rank in this one. Every rank of this group
    /// must call it. The new group can be split again, and lives as long as its handles. A failure in one
    /// group fails all groups of the job.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::all_reduce`], and of creating the new group's transport.
    pub fn split(&self, color: u64, key: i64) -> Result<ProcessGroup> {
        self.with_permit(|group| {
            let shared = &group.shared;
            let mine = [color as i64, key];
            let all = group.all_gather(&mine)?;
            let mut ranks: Vec<_> = all
                .iter()
                .enumerate()
                .filter(|(_, choice)| choice[0] == color as i64)
                .map(|(rank, choice)| (choice[1], rank))
                .collect();
            ranks.sort();
            let members: Vec<usize> = ranks.iter().map(|(_, rank)| shared.state.members[*rank]).collect();
            // Equal on all ranks of the new group, and different from the ids of all other groups.
            let name = format!("{} {} {color}", shared.state.group, shared.state.last_seq());
            let digest = Sha256::digest(name);
            let id = digest.iter().take(8).fold(0u64, |id, byte| id << 8 | u64::from(*byte)).max(1);
            let me = shared.state.members[shared.state.world.rank];
            let rank = members.iter().position(|member| *member == me).unwrap_or_default();
            let parts = shared.topology.open(id, members, rank)?;
            let part = ProcessGroup::new(shared.topology.clone(), parts);
            part.attach_like(group)?;
            Ok(part)
        })
    }
}
