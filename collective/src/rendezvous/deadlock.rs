//! Deadlock detection: decides from the activities of all ranks whether they wait for each other.

use super::{
    store::USER_KEYS,
    wire::{Activity, PendingCall},
};
use crate::Error;
use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

/// Time after which a waiting call is checked for a deadlock.
pub(crate) const DEADLOCK_AFTER: Duration = Duration::from_secs(4);

/// A mismatch that names two ranks of a deadlock, or `None` if there is none.
///
/// `activities` has every rank that has not left the job, and `has_key` tells whether a store key is
/// set. Nothing is reported while any rank computes.
///
/// A call returns once all ranks of its group have made it. Ranks whose call has been made by all are
/// marked live; then, repeatedly, ranks that wait for live ranks only. The rest is deadlocked.
pub(crate) fn deadlock(
    activities: &HashMap<usize, Activity>,
    has_key: impl Fn(&str) -> bool,
) -> Option<Error> {
    if !activities.values().all(|activity| activity.waiting) {
        return None;
    }
    let mut stuck: BTreeSet<usize> = activities.keys().copied().collect();
    loop {
        let live = stuck.len() < activities.len();
        let moves = |rank: &usize| {
            let Activity { calls, keys, .. } = &activities[rank];
            // A rank without a recorded wait is about to continue.
            (calls.is_empty() && keys.is_empty())
                || calls.iter().any(|call| missing(*rank, call, activities).all(|rank| !stuck.contains(&rank)))
                // Any live rank may set a key.
                || keys.iter().any(|key| live || has_key(key))
        };
        let moving: Vec<usize> = stuck.iter().copied().filter(moves).collect();
        if moving.is_empty() {
            break;
        }
        moving.iter().for_each(|rank| _ = stuck.remove(rank));
    }
    let rank_a = *stuck.first()?;
    let first = activities[&rank_a].calls.first();
    let rank_b = match first {
        Some(call) => missing(rank_a, call, activities).find(|rank| stuck.contains(rank)),
        None => stuck.iter().copied().find(|rank| *rank != rank_a),
    }?;
    let (call_a, call_b) = (describe(&activities[&rank_a])?, describe(&activities[&rank_b])?);
    Some(Error::Mismatch { rank_a, call_a, rank_b, call_b })
}

/// Whether no thread began or ended a wait between two surveys of all ranks. If so, all activities
/// held at the same moment.
pub(crate) fn same_moment(first: &HashMap<usize, Activity>, second: &HashMap<usize, Activity>) -> bool {
    let same = |(rank, activity): (&usize, &Activity)| {
        second.get(rank).is_some_and(|later| later.transitions == activity.transitions)
    };
    first.len() == second.len() && first.iter().all(same)
}

/// The ranks that have not made a call in which `rank` waits. Ranks without an activity, which have
/// left, count as having made it.
fn missing<'a>(
    rank: usize,
    pending: &'a PendingCall,
    activities: &'a HashMap<usize, Activity>,
) -> impl Iterator<Item = usize> + 'a {
    let others: &[usize] = match &pending.message {
        Some((from, to)) if *from == rank => std::slice::from_ref(to),
        Some((from, _)) => std::slice::from_ref(from),
        None => &pending.members,
    };
    let made = move |other: usize| {
        let Some(activity) = activities.get(&other) else { return true };
        let last = match pending.message {
            None => activity.counters.iter().find(|(group, _)| *group == pending.group).map(|(_, seq)| *seq),
            Some((from, to)) => {
                let same = |m: &&(u64, usize, usize, u64)| (m.0, m.1, m.2) == (pending.group, from, to);
                activity.messages.iter().find(same).map(|(.., seq)| *seq)
            }
        };
        last.unwrap_or(0) >= pending.call.seq
    };
    others.iter().copied().filter(move |other| *other != rank && !made(*other))
}

/// Describes the call that a rank waits in, with its group, because calls of different groups have equal
/// numbers.
fn describe(activity: &Activity) -> Option<String> {
    let Some(PendingCall { group, members, call, message }) = activity.calls.first() else {
        let key = activity.keys.first()?;
        return Some(format!("get of key {:?} of the store", key.strip_prefix(USER_KEYS).unwrap_or(key)));
    };
    let way = message.map_or(String::new(), |(from, to)| format!(" from rank {from} to rank {to}"));
    let ranks = match members.as_slice() {
        _ if *group == 0 => "the group of all ranks".into(),
        few if few.len() <= 8 => {
            let few: Vec<_> = few.iter().map(usize::to_string).collect();
            format!("group {group:016x} of ranks {}", few.join(", "))
        }
        many => format!("group {group:016x} of {} ranks", many.len()),
    };
    Some(format!("{call}{way} in {ranks}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, communicator::Fingerprint};

    fn call(group: u64, members: &[usize], seq: u64) -> PendingCall {
        let operation = "all_reduce".into();
        let call = Fingerprint { seq, operation, dtype: DType::F32, count: 4, reduce: None, root: None };
        PendingCall { group, members: members.to_vec(), call, message: None }
    }

    /// The activity of a rank that waits in `calls`.
    fn waits(calls: &[PendingCall]) -> Activity {
        let counters = calls.iter().map(|call| (call.group, call.call.seq)).collect();
        Activity { waiting: true, calls: calls.to_vec(), counters, ..Activity::default() }
    }

    fn judge<const N: usize>(ranks: [Activity; N]) -> Option<String> {
        let activities = ranks.into_iter().enumerate().collect();
        deadlock(&activities, |key| key == "known").map(|error| error.to_string())
    }

    #[test]
    fn ranks_waiting_in_different_groups_are_a_mismatch_with_both_sides() {
        let text = judge([waits(&[call(0, &[0, 1], 7)]), waits(&[call(9, &[0, 1], 3)])]).unwrap();
        assert_eq!(
            text,
            "collective mismatch: rank 0 called all_reduce #7 (4 x F32) in the group of all ranks, but rank 1 called all_reduce #3 (4 x F32) in group 0000000000000009 of ranks 0, 1"
        );
    }

    #[test]
    fn a_call_that_all_ranks_have_made_is_not_a_deadlock() {
        let same = || waits(&[call(0, &[0, 1], 7)]);
        assert_eq!(judge([same(), same()]), None);
        // Rank 1 is one call ahead; its data for the previous call is in flight.
        assert_eq!(judge([same(), waits(&[call(0, &[0, 1], 8)])]), None);
    }

    #[test]
    fn a_computing_rank_is_not_part_of_a_deadlock() {
        let busy = Activity::default();
        assert_eq!(judge([waits(&[call(1, &[0, 2], 1)]), waits(&[call(2, &[1, 2], 1)]), busy]), None);
        // One of rank 0's two calls can return.
        let two = [call(1, &[0, 1], 2), call(2, &[0, 1], 1)];
        assert_eq!(judge([waits(&two), waits(&[call(2, &[0, 1], 1)])]), None);
    }

    #[test]
    fn a_cycle_is_found_and_ranks_that_wait_for_it_are_not_blamed() {
        let text = judge([
            waits(&[call(5, &[0, 1], 1)]),
            waits(&[call(6, &[1, 2], 1)]),
            waits(&[call(7, &[2, 0], 1)]),
        ]);
        assert!(text.is_some_and(|text| text.contains("rank 0") && text.contains("rank 1")));
    }

    #[test]
    fn a_key_that_no_rank_can_set_is_a_mismatch() {
        let get = |key: &str| Activity { waiting: true, keys: vec![key.into()], ..Activity::default() };
        let text = judge([waits(&[call(0, &[0, 1], 7)]), get("lost")]).unwrap();
        assert!(text.ends_with("rank 1 called get of key \"lost\" of the store"), "{text}");
        assert_eq!(judge([waits(&[call(0, &[0, 1], 7)]), get("known")]), None);
        let meet = || waits(&[call(3, &[1, 2], 1)]);
        assert_eq!(judge([get("lost"), meet(), meet()]), None, "the other ranks continue and may set it");
    }

    #[test]
    fn a_message_waits_only_for_its_peer() {
        let message = |from, to, seq| PendingCall { message: Some((from, to)), ..call(0, &[0, 1], seq) };
        let sent = Activity { messages: vec![(0, 0, 1, 4)], ..waits(&[call(2, &[0, 1], 1)]) };
        assert_eq!(judge([sent.clone(), waits(&[message(0, 1, 4)])]), None, "the message is in flight");
        let text = judge([sent, waits(&[message(0, 1, 5)])]).unwrap();
        assert!(text.contains("from rank 0 to rank 1"), "{text}");
    }
}
