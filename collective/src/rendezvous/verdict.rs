//! What the answers of the ranks mean, when one of them has waited for long.

use super::wire::{Place, Stall};
use crate::Error;
use std::collections::HashMap;

/// A mismatch, a rank that has left or, once the deadline has passed, who did not come; `None` if
/// the ranks are only slow. `left` says whether a world rank has said goodbye.
pub(crate) fn verdict(
    asker: usize,
    stall: &Stall,
    left: impl Fn(usize) -> bool,
    answers: &HashMap<usize, Place>,
) -> Option<Error> {
    let answer = |rank: &usize| answers.get(rank);
    let differs = |place: &&Place| place.asked.as_ref().is_some_and(|call| *call != stall.call);
    for rank in &stall.members {
        if let Some(Place { asked: Some(call), .. }) = answer(rank).filter(differs) {
            let (call_a, call_b) = (stall.call.to_string(), call.to_string());
            return Some(Error::Mismatch { rank_a: asker, call_a, rank_b: *rank, call_b });
        }
    }
    if let Some(&rank) = stall.members.iter().find(|rank| left(**rank)) {
        let reason = format!("it had finished or destroyed its group before {}", stall.call);
        return Some(Error::PeerLost { rank, reason });
    }
    if !stall.expired {
        return None;
    }
    let absent: Vec<_> = stall
        .members
        .iter()
        .filter_map(|rank| match answer(rank) {
            None => Some(format!("rank {rank} does not answer (stopped or unreachable)")),
            Some(Place { asked: Some(_), .. }) => None,
            Some(Place { seq, .. }) if !stall.direct && *seq >= stall.call.seq => None,
            Some(Place { last: None, .. }) => {
                Some(format!("rank {rank} has not called it, nor anything before"))
            }
            Some(Place { last: Some(last), inside, .. }) => {
                let state = if *inside { "it is still in" } else { "its last call was" };
                let missing = if stall.direct { "is elsewhere" } else { "has not called it" };
                Some(format!("rank {rank} {missing}; {state} {last}"))
            }
        })
        .collect();
    let absent = if absent.is_empty() {
        "all ranks have called it, but the data did not get through in time".into()
    } else {
        absent.join("; ")
    };
    Some(Error::Timeout { call: stall.call.to_string(), seconds: stall.seconds, absent })
}
