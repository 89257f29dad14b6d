//! Diagnosis of a call that has waited long, from the positions of all ranks.

use super::wire::{Place, Stall};
use crate::Error;
use std::collections::HashMap;

/// A mismatch within the call's group, or a rank that will never make the call.
///
/// `None` if the ranks may only be slow. `left` tells whether a world rank has left before the call.
pub(crate) fn contradiction(
    asker: usize,
    stall: &Stall,
    left: impl Fn(usize) -> bool,
    answers: &HashMap<usize, Place>,
) -> Option<Error> {
    // A message from a rank that has left may still be in flight.
    if stall.direct && !stall.expired {
        return None;
    }
    let differs = |place: &&Place| place.asked.as_ref().is_some_and(|call| *call != stall.call);
    for rank in &stall.members {
        if let Some(Place { asked: Some(call), .. }) = answers.get(rank).filter(differs) {
            let (call_a, call_b) = (stall.call.to_string(), call.to_string());
            return Some(Error::Mismatch { rank_a: asker, call_a, rank_b: *rank, call_b });
        }
    }
    let closed = |rank: &usize| {
        answers.get(rank).is_some_and(|place| place.closed && !stall.direct && place.seq < stall.call.seq)
    };
    let rank = stall.members.iter().copied().find(|rank| left(*rank) || closed(rank))?;
    let reason = format!("it had finished or destroyed its group before {}", stall.call);
    Some(Error::PeerLost { rank, reason })
}

/// The time-out error of a call, with the ranks that have not made it.
pub(crate) fn timeout(stall: &Stall, answers: &HashMap<usize, Place>) -> Error {
    let absent: Vec<_> = stall
        .members
        .iter()
        .filter_map(|rank| match answers.get(rank) {
            None => Some(format!("rank {rank} does not answer (stopped or unreachable)")),
            Some(Place { asked: Some(_), .. }) => None,
            Some(Place { seq, .. }) if !stall.direct && *seq >= stall.call.seq => None,
            Some(Place { last: None, .. }) => {
                Some(format!("rank {rank} has not called it, nor anything before"))
            }
            Some(Place { last: Some(last), inside, .. }) => {
                let state = if *inside { "it is still in" } else { "its last call was" };
                Some(format!("rank {rank} has not called it; {state} {last}"))
            }
        })
        .collect();
    let absent = if absent.is_empty() {
        "all ranks have called it, but the data did not arrive in time".into()
    } else {
        absent.join("; ")
    };
    Error::Timeout { call: stall.call.to_string(), seconds: stall.seconds, absent }
}
