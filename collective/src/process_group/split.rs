//! Sub-groups.

use super::ProcessGroup;
use crate::Result;
use sha2::{Digest, Sha256};

impl ProcessGroup {
    /// Splits the group: ranks that pass the same `color` form a new group, in which they are
    /// ordered by `key`, then by their rank here. Every rank of this group must call it. The new
    /// group can be split again, and lives as long as its handles.
    ///
    /// A failure in one group is a failure of the job: it ends all of them.
    pub fn split(&self, color: u64, key: i64) -> Result<ProcessGroup> {
        self.in_turn(|group| {
            let inner = &group.inner;
            let mine = [color as i64, key];
            let all = group.all_gather(&mine)?;
            let mut ranks: Vec<_> = all
                .iter()
                .enumerate()
                .filter(|(_, choice)| choice[0] == color as i64)
                .map(|(rank, choice)| (choice[1], rank))
                .collect();
            ranks.sort();
            let members: Vec<usize> = ranks.iter().map(|(_, rank)| inner.core.members[*rank]).collect();
            // The same on all its ranks, and different from all other groups'.
            let name = format!("{} {} {color}", inner.core.group, inner.core.last_seq());
            let digest = Sha256::digest(name);
            let id = digest.iter().take(8).fold(0u64, |id, byte| id << 8 | u64::from(*byte)).max(1);
            let me = inner.core.members[inner.core.world.rank];
            let rank = members.iter().position(|member| *member == me).unwrap_or_default();
            let part = ProcessGroup::new(inner.site.open(id, members, rank)?);
            part.attach_like(group)?;
            Ok(part)
        })
    }
}
