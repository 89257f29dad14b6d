//! Diagnosis of a call that has waited long, from the positions of all ranks.

use super::wire::{PendingCall, Place, Stall};
use crate::{Error, error::UNEVEN};
use std::collections::HashMap;

/// A mismatch within the family of the call's group, or a rank that will never make the call.
///
/// `None` if the ranks may only be slow. `left` tells whether a world rank has left before the call. The answers
/// are of different moments: only equal results of two inquiries, one after the other, are conclusive.
pub(crate) fn contradiction(
    asker: usize,
    stall: &Stall,
    left: impl Fn(usize) -> bool,
    answers: &HashMap<usize, Place>,
) -> Option<Error> {
    let mismatch = |rank_b: usize, call_a: String, call_b: String| {
        Some(Error::Mismatch { rank_a: asker, call_a, rank_b, call_b })
    };
    let members = || stall.members.iter().filter_map(|rank| Some((*rank, answers.get(rank)?)));
    for (rank, place) in members() {
        if let Some(call) = place.asked.as_ref().filter(|call| **call != stall.call) {
            return mismatch(rank, stall.call.to_string(), call.to_string());
        }
    }
    for (rank, other) in members() {
        let calls = answers.get(&asker).and_then(|own| wait_for_each_other(stall, own, other));
        if let Some((mine, theirs)) = calls {
            let show = |wait: &PendingCall| format!("{} in {}", wait.call, wait.label);
            return mismatch(rank, show(mine), show(theirs));
        }
    }
    // A message from a rank that has left may still be in flight.
    let closed = |place: &Place| place.closed && stall.message.is_none() && place.seq < stall.call.seq;
    let gone = |rank: &usize| left(*rank) || answers.get(rank).is_some_and(closed);
    let rank =
        stall.members.iter().copied().find(gone).filter(|_| stall.expired || stall.message.is_none())?;
    let reason = format!("it had finished or destroyed its group before {}; {UNEVEN}", stall.call);
    Some(Error::PeerLost { rank, reason })
}

/// The calls in which the asking rank and another one wait, if neither can make the other's.
fn wait_for_each_other<'a>(
    stall: &Stall,
    own: &'a Place,
    other: &'a Place,
) -> Option<(&'a PendingCall, &'a PendingCall)> {
    let (mine, theirs) = (own.waits.as_ref()?, other.waits.as_ref()?);
    // The number of a rank's last collective in a group in which it cannot make another call while it waits.
    let stuck = |place: &Place, wait: &PendingCall, group: u64| {
        let progress = place.family.iter().find(|progress| progress.group == group)?;
        (progress.idle || wait.group == group).then_some(progress.seq)
    };
    let asked = (mine.group, &mine.call) == (stall.group, &stall.call);
    let own_missing = !theirs.direct && stuck(own, mine, theirs.group)? < theirs.call.seq;
    let other_missing = stuck(other, theirs, mine.group).is_some() && other.seq < mine.call.seq;
    (asked && own_missing && other_missing).then_some((mine, theirs))
}

/// Maximum number of ranks in a message.
const RANKS: usize = 16;

/// The time-out error of a call, with the first ranks that have not made it.
pub(crate) fn timeout(stall: &Stall, answers: &HashMap<usize, Place>) -> Error {
    let mut absent: Vec<_> = stall
        .members
        .iter()
        .filter_map(|rank| match answers.get(rank) {
            None => Some(format!("rank {rank} does not answer (stopped or unreachable)")),
            Some(Place { asked: Some(_), .. }) => None,
            Some(Place { seq, .. }) if *seq >= stall.call.seq => None,
            Some(Place { last: None, .. }) => {
                Some(format!("rank {rank} has not called it, nor anything before"))
            }
            Some(Place { last: Some(last), inside, .. }) => {
                let state = if *inside { "it is still in" } else { "its last call was" };
                Some(format!("rank {rank} has not called it; {state} {last}"))
            }
        })
        .collect();
    if absent.len() > RANKS {
        let more = absent.split_off(RANKS).len();
        absent.push(format!("and {more} more ranks"));
    }
    let absent = if absent.is_empty() {
        "all ranks have called it, but the data did not arrive in time".into()
    } else {
        absent.join("; ")
    };
    Error::Timeout { call: stall.call.to_string(), seconds: stall.seconds, absent }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, DType, rendezvous::wire::GroupProgress};
    use std::time::Duration;

    fn call(group: u64, seq: u64) -> PendingCall {
        let call = Call::new("all_reduce", DType::F32, 4).numbered(seq, Duration::ZERO);
        PendingCall { group, label: format!("group {group}"), call, direct: false }
    }

    /// A rank that waits in a call of one of two groups, with the number of its last collective in each.
    fn waits(call: PendingCall, seqs: [u64; 2]) -> Place {
        let progress = |(group, seq)| GroupProgress { group, seq, idle: group != call.group };
        let family = (0..).zip(seqs).map(progress).collect();
        Place { seq: seqs[0], waits: Some(call), family, ..Place::default() }
    }

    /// The finding about rank 0, which waits in call 7 of group 0 and has made 3 calls in group 1.
    fn diagnose(other: Place) -> Option<String> {
        let own = call(0, 7);
        let stall = Stall {
            group: 0,
            members: vec![0, 1],
            call: own.call.clone(),
            message: None,
            seconds: 1.0,
            expired: false,
        };
        let answers = HashMap::from([(0, waits(own, [7, 3])), (1, other)]);
        contradiction(0, &stall, |_| false, &answers).map(|error| error.to_string())
    }

    #[test]
    fn ranks_that_wait_for_each_other_are_a_mismatch_with_both_sides() {
        let text = diagnose(waits(call(1, 4), [6, 4])).unwrap();
        assert_eq!(
            text,
            "collective mismatch: rank 0 called all_reduce #7 (4 x F32) in group 0, but rank 1 called all_reduce #4 (4 x F32) in group 1; if the ranks have different numbers of batches, shard the data with ShardedLoader"
        );
    }

    #[test]
    fn a_timeout_of_thousands_of_ranks_has_a_short_message() {
        let PendingCall { group, call, .. } = call(0, 7);
        let members = (0..4096).collect();
        let stall = Stall { group, members, call, message: None, seconds: 1.0, expired: true };
        let text = timeout(&stall, &HashMap::new()).to_string();
        assert!(
            text.contains("rank 15 does not answer (stopped or unreachable); and 4080 more ranks"),
            "{text}"
        );
    }

    #[test]
    fn a_call_that_may_still_be_made_is_not_a_mismatch() {
        // Rank 0 has made rank 1's call, or rank 1 has made rank 0's; the data is in flight.
        assert_eq!(diagnose(waits(call(1, 3), [6, 3])), None);
        assert_eq!(diagnose(waits(call(1, 4), [7, 4])), None);
        let mut background = waits(call(1, 4), [6, 4]);
        background.family[0].idle = false;
        assert_eq!(diagnose(background), None, "a background call is queued");
        assert_eq!(diagnose(Place { waits: None, ..waits(call(1, 4), [6, 4]) }), None, "rank 1 computes");
        assert_eq!(diagnose(waits(call(9, 1), [6, 4])), None, "a group of another family");
    }
}
