//! Small all-reduces of few ranks: every rank sends its buffer to every other and reduces for itself.

use super::schedule::{Duplex, Part, Schedule, Transfer, peers};
use crate::reduce::Reduction;

/// Sends every rank's buffer of `bytes` bytes to every rank, or to the root only.
pub(super) fn reduce(reduction: Reduction, bytes: usize, root: Option<usize>) -> Schedule<'static> {
    let (me, size) = (reduction.world.rank, reduction.world.size);
    let wants = move |rank: usize| root.is_none_or(|root| root == rank);
    let slot = move |peer: usize| Part::Scratch(peer * bytes..(peer + 1) * bytes);
    let plan = |peer| {
        let part = |wanted, part| if wanted { Transfer::free(vec![part]) } else { Transfer::bare() };
        (part(wants(peer), Part::User(0..bytes)), part(wants(me), slot(peer)))
    };
    let peers = peers(reduction.world).filter(|peer| wants(me) || wants(*peer));
    let mut reduced = false;
    Schedule::new(size * bytes, peers, plan, move |arithmetic, duplexes| {
        if wants(me) && !reduced && duplexes.iter().all(Duplex::complete) {
            reduced = true;
            let own = || Part::User(0..bytes);
            arithmetic.reduce(reduction, &|rank| if rank == me { own() } else { slot(rank) }, own());
        }
    })
}
